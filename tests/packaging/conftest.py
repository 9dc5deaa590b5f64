import tarfile
from pathlib import Path

import pytest

from tests.packaging.environments import ROOT, Environment, build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the checkout."""
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the sources of the checkout."""
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture
def sources(sdist: Path, tmp_path: Path) -> Path:
    """What a user has who unpacked the archive."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "sources", filter="data")
    [folder] = (tmp_path / "sources").iterdir()
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An empty environment."""
    return Environment(tmp_path / "environment")
