import pytest

from tests.backends import PostgresBackend
from tests.inbox.inbox_app import InboxApp


@pytest.fixture
async def app(postgres: PostgresBackend) -> InboxApp:
    app = InboxApp(postgres)
    await app.create()
    return app
