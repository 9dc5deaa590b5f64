"""What is taken from FastStream's private modules is taken in two places, and users need not have FastAPI."""

import re
import subprocess
import sys
from pathlib import Path

import faststream_outbox

PACKAGE = Path(faststream_outbox.__file__).parent


def test_two_modules_know_the_private_ones() -> None:
    knowing = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"faststream\._internal", path.read_text())
    }
    assert knowing == {"_faststream.py", "fastapi/_faststream.py"}


def test_the_broker_needs_no_fastapi() -> None:
    script = (
        "import sys; sys.modules['fastapi'] = None; import faststream_outbox.annotations, faststream_outbox.testing"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
