import pytest

from tests.inapp.places import PLACES, Place
from tests.servers.plugin import Servers


@pytest.fixture
def driver() -> str:
    """One is enough: what is tested here happens on the other side of the handler."""
    return "asyncpg"


@pytest.fixture
async def place(request: pytest.FixtureRequest, servers: Servers) -> Place:
    """Somewhere to publish to; of every kind, unless a test names some."""
    kind = PLACES[request.param]
    place = kind(await servers.up(kind.server_type, request))
    await place.create()
    return place


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = [mark for mark in metafunc.definition.iter_markers("parametrize") if mark.args[0] == "place"]
    if "place" in metafunc.fixturenames and not marks:
        metafunc.parametrize("place", PLACES, indirect=True)
