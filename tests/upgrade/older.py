"""An older version of the package: built as a wheel from the history of this repository, with its own tests beside it.

Its tests are needed because they record what its store does, by names that only that version has. The records have the
same form in all versions, so that one checker reads them all.
"""

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# Versions that must be able to share tables with this one: the first whose processes the checker understands, and the
# last before claims were bounded by bytes and keys were settled early.
VERSIONS: Final = {
    "95b190f of 2026-11-16": "95b190f7d447027920a547b4d38cd999eec0c314",
    "e7bd9d8 of 2026-11-17": "e7bd9d8c7017e1d89ab4c7e5e004c2dac67d742a",
}
_PARTS: Final = ("faststream_outbox", "tests", "pyproject.toml", "README.md", "LICENSE")


def lacks(revision: str) -> str | None:
    """Return why this version cannot be built here; `None` if it can."""
    if shutil.which("git") is None:
        return "git is not installed"
    found = _git("cat-file", "-e", f"{revision}^{{commit}}", check=False)
    if found.returncode != 0:
        return f"the history of this checkout does not have {revision[:7]}: git fetch --unshallow"
    return None


@contextmanager
def older_version(revision: str) -> Iterator[Path]:
    """Build a version for some rounds; give where it is."""
    if reason := lacks(revision):
        raise SystemExit(f"The older version cannot be built: {reason}")
    with tempfile.TemporaryDirectory(prefix="outbox-older-") as folder:
        yield build(revision, Path(folder))


def build(revision: str, into: Path) -> Path:
    """Build the wheel of a version, unpack it below `into`, put its tests beside it; return where both are."""
    source, unpacked = into / "source", into / "older"
    archive = _git("archive", revision, *_PARTS).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(source, filter="data")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = into.glob("*.whl")
    shutil.unpack_archive(wheel, unpacked, "zip")
    shutil.move(source / "tests", unpacked / "tests")
    return unpacked


def _git(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=check)
