"""A missing extra is named, with what to type."""

import subprocess
import sys

import pytest

from faststream_outbox._installation import needs_extra


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("prometheus", "prometheus_client", "prometheus"),
        ("metrics.prometheus", "prometheus_client", "prometheus"),
        ("opentelemetry", "opentelemetry", "opentelemetry"),
        ("metrics.opentelemetry", "opentelemetry", "opentelemetry"),
    ],
)
def test_a_missing_extra(module: str, missing: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; import faststream_outbox; import faststream_outbox.{module}"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    last_line = ended.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError: ")
    assert last_line.endswith(needs_extra("", extra))
