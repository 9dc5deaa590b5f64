"""A place of each kind, on servers that run."""

import pytest

from tests.relay.destinations import PLACES, Place
from tests.servers.plugin import Servers


@pytest.fixture
def driver() -> str:
    """One will do: a relay uses the database as every subscriber does, and those are tested with each."""
    return "asyncpg"


@pytest.fixture(params=PLACES, ids=lambda kind: kind.__name__)
async def place(servers: Servers, request: pytest.FixtureRequest) -> Place:
    """Every place that a relay knows; a test may narrow them with `indirect`."""
    kind: type[Place] = request.param
    made = kind(await servers.up(kind.server, request))
    await made.prepare()
    return made
