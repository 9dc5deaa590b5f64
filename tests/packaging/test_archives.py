"""What `make dist` builds: the files of both archives, and what they say of themselves."""

import re
import subprocess
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from faststream_outbox import __version__
from tests.packaging.environments import ROOT, build

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
INFO = f"faststream_outbox-{__version__}.dist-info"


@pytest.fixture
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_string(archive.read(f"{INFO}/METADATA").decode())


def tracked() -> list[str]:
    """Return the files of the checkout that git does not ignore; skip where there is no git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a checkout of git")
    return sorted(name for name in done.stdout.splitlines() if (ROOT / name).is_file())


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"faststream_outbox-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    info = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    package = {str(file.relative_to(ROOT)) for file in (ROOT / "faststream_outbox").rglob("*") if is_source(file)}
    assert set(names) == package | info
    ready_made = {"faststream_outbox/metrics/dashboard.json", "faststream_outbox/metrics/alerts.yaml"}
    assert {"faststream_outbox/py.typed"} | ready_made <= set(names)


def is_source(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts


def test_the_archive_of_the_sources_has_what_its_tests_read(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - {"PKG-INFO"} == set(tracked())


def test_both_archives_lead_to_the_same_wheel(wheel: Path, sources: Path, tmp_path: Path) -> None:
    again = build(sources, "wheel", tmp_path / "again")
    assert again.read_bytes() == wheel.read_bytes()


def test_the_metadata_say_what_a_user_has_to_know(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("faststream-outbox", __version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()
    assert "Development Status :: 5 - Production/Stable" in metadata.get_all("Classifier", [])


def test_every_extra_is_there_and_all_has_every_other(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS.keys()
    [everything] = EXTRAS["all"]
    [named] = re.findall(r"^faststream-outbox\[([\w,]+)\]$", everything)
    assert sorted(named.split(",")) == sorted(EXTRAS.keys() - {"all"})


def test_the_changelog_has_the_version() -> None:
    [released] = re.findall(rf"^## \[{re.escape(__version__)}\] - (\d{{4}}-\d\d-\d\d)$", changelog(), re.MULTILINE)
    assert released


def changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text()
