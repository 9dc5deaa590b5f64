"""`python -m pytest examples/testing`: the tests of the small service pass, and can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from faststream_outbox.embedded.database import DSN_VARIABLE

_CHECKOUT = Path(__file__).parents[2]


def run_pytest(folder: Path, server: Database) -> "subprocess.CompletedProcess[str]":
    """Run the tests on the Postgres of this run, which need not start another."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder.parents[1],
        env=os.environ | {DSN_VARIABLE: server.dsn},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_they_pass(outbox_postgres_server: Database) -> None:
    run = run_pytest(_CHECKOUT / "examples" / "testing", outbox_postgres_server)
    assert run.returncode == 0, run.stdout
    assert "7 passed" in run.stdout


@pytest.mark.parametrize("broken", ["await mailer.send", "await broker.publish"])
def test_they_fail_when_the_service_is_broken(tmp_path: Path, broken: str, outbox_postgres_server: Database) -> None:
    folder = tmp_path / "examples" / "testing"
    shutil.copytree(_CHECKOUT / "examples" / "testing", folder)
    (folder.parent / "__init__.py").touch()
    service = folder / "service.py"
    service.write_text(service.read_text().replace(broken, f"0 and {broken}"))
    assert run_pytest(folder, outbox_postgres_server).returncode == 1
