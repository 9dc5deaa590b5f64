"""`python -m pytest examples/testing`: the tests of the small service pass, and can fail."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[2]


def run_pytest(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder.parents[1], capture_output=True, text=True, timeout=120, check=False)


def test_they_pass() -> None:
    run = run_pytest(_CHECKOUT / "examples" / "testing")
    assert run.returncode == 0, run.stdout
    assert "7 passed" in run.stdout


@pytest.mark.parametrize("broken", ["await mailer.send", "await broker.publish"])
def test_they_fail_when_the_service_is_broken(tmp_path: Path, broken: str) -> None:
    folder = tmp_path / "examples" / "testing"
    shutil.copytree(_CHECKOUT / "examples" / "testing", folder)
    (folder.parent / "__init__.py").touch()
    service = folder / "service.py"
    service.write_text(service.read_text().replace(broken, f"0 and {broken}"))
    assert run_pytest(folder).returncode == 1
