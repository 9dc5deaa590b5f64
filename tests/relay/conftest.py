"""An endpoint of each kind, on real servers."""

import pytest

from tests.relay.endpoints import ENDPOINTS, Endpoint
from tests.servers.plugin import Servers


@pytest.fixture
def driver() -> str:
    """One will do: a relay uses the database as every subscriber does, and those are tested with each."""
    return "asyncpg"


@pytest.fixture(params=ENDPOINTS, ids=lambda kind: kind.__name__)
async def endpoint(servers: Servers, request: pytest.FixtureRequest) -> Endpoint:
    """Every endpoint that a relay supports; a test may select some with `indirect`."""
    kind: type[Endpoint] = request.param
    made = kind(await servers.up(kind.server, request))
    await made.prepare()
    return made
