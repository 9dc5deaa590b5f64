"""The older version that a test runs beside this one, named by the parameter of the fixture."""

from pathlib import Path

import pytest

from tests.upgrade.older import VERSIONS, build, lacks


@pytest.fixture(scope="session")
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the version once for all tests of a worker, and return where it is."""
    revision = VERSIONS[request.param]
    if reason := lacks(revision):
        pytest.skip(f"No older version to run beside this one: {reason}")
    return build(revision, tmp_path_factory.mktemp("older"))
