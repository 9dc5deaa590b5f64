"""Archives of the checkout, and environments to install them into."""

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
# What pip says where there is no registry to be reached.
_UNREACHABLE: Final = ("NewConnectionError", "Name or service not known", "Failed to establish", "Max retries exceeded")
_PATIENCE: Final = 300.0


def build(source: Path, target: str, into: Path) -> Path:
    """Build the `wheel` or the `sdist` of a folder of sources; return the file."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [file] = into.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return file


class Environment:
    """A virtual environment with a pip, and nothing of the one that runs the tests unless it borrows."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder)
        self.folder = folder
        # pip is that of the Python which made the environment of the tests: one of its own would take half a minute.
        base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        pip = folder / "bin" / "pip"
        pip.write_text(f'#!/bin/sh\nexec "{base}" -m pip --python "{folder}/bin/python" "$@"\n')
        pip.chmod(0o755)
        self.packages = next((folder / "lib").iterdir()) / "site-packages"

    def borrow(self) -> None:
        """Import dependencies, but not this package, from the environment that runs the tests."""
        theirs = next((Path(sys.prefix) / "lib").iterdir()) / "site-packages"
        (self.packages / "borrowed.pth").write_text(f"{theirs}\n")

    def shell(self, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a line of a shell in a folder, with the programs of this environment first."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.folder),
        }
        return subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )

    def install(self, command: str, folder: Path) -> None:
        """Run a line with pip; skip the test where no registry can be reached."""
        done = self.shell(command, folder)
        if done.returncode and any(sign in done.stderr for sign in _UNREACHABLE):
            pytest.skip("no registry of packages can be reached")
        assert done.returncode == 0, done.stdout + done.stderr
