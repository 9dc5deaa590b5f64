import pytest

from tests.foreign_brokers.endpoints import ENDPOINTS, Endpoint
from tests.servers.plugin import Servers


@pytest.fixture
def driver() -> str:
    """One is enough: what is tested here happens on the other side of the handler."""
    return "asyncpg"


@pytest.fixture(params=ENDPOINTS)
async def endpoint(request: pytest.FixtureRequest, servers: Servers) -> Endpoint:
    """A destination of each kind."""
    kind = ENDPOINTS[request.param]
    endpoint = kind(await servers.up(kind.server_type, request))
    await endpoint.create()
    return endpoint
