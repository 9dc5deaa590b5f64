import pytest

from tests.foreign_brokers.destinations import PLACES, Place
from tests.servers.plugin import Servers


@pytest.fixture
def driver() -> str:
    """One is enough: what is tested here happens on the other side of the handler."""
    return "asyncpg"


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, servers: Servers) -> Place:
    """Somewhere to publish to."""
    kind = PLACES[request.param]
    place = kind(await servers.up(kind.server_type, request))
    await place.create()
    return place
