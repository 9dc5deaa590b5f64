import pytest

from tests.backends import PostgresBackend
from tests.inbox.inbox_app import Desk


@pytest.fixture
async def desk(postgres: PostgresBackend) -> Desk:
    desk = Desk(postgres)
    await desk.create()
    return desk
