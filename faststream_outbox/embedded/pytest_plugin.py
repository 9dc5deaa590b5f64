"""Pytest fixtures: one server for the test run, one fresh database for each test.

Switch it on in the `conftest.py` at the root of your tests:

```python
pytest_plugins = ["faststream_outbox.embedded.pytest_plugin"]
```

or with `pytest -p faststream_outbox.embedded.pytest_plugin`. When `OUTBOX_TEST_DSN` names a server, that one is used.
"""

import os
from collections.abc import Iterator

import pytest

from faststream_outbox.embedded.admin import AdminSession
from faststream_outbox.embedded.database import DSN_VARIABLE, Database
from faststream_outbox.embedded.server import EmbeddedPostgres


@pytest.fixture(scope="session")
def outbox_postgres_server() -> Iterator[Database]:
    """Give the maintenance database of the server under test; override this fixture to choose another server.

    With pytest-xdist each worker has a session, and so a server, of its own.
    """
    dsn = os.environ.get(DSN_VARIABLE)
    if dsn:
        yield Database(dsn)
        return
    with EmbeddedPostgres(fast=True) as server:
        yield server.database


@pytest.fixture(scope="session")
def _outbox_postgres_admin(outbox_postgres_server: Database) -> Iterator[AdminSession]:
    # One connection for the whole run, which halves the cost of a test's database.
    with AdminSession(outbox_postgres_server) as admin:
        yield admin


@pytest.fixture
def outbox_postgres(outbox_postgres_server: Database, _outbox_postgres_admin: AdminSession) -> Iterator[Database]:
    """Give a database that only this test uses.

    ```python
    async def test_publish(outbox_postgres):
        engine = create_async_engine(outbox_postgres.url("asyncpg"))
    ```
    """
    database = outbox_postgres_server.sibling()
    _outbox_postgres_admin.create(database.name)
    try:
        yield database
    finally:
        _outbox_postgres_admin.drop(database.name)
