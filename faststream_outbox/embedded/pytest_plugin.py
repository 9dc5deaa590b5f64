"""Pytest fixtures: one server for the test run, one fresh database for each test.

Switch it on in the `conftest.py` at the root of your tests:

```python
pytest_plugins = ["faststream_outbox.embedded.pytest_plugin"]
```

or with `pytest -p faststream_outbox.embedded.pytest_plugin`. When `OUTBOX_TEST_DSN` names a server, the tests use it.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from faststream_outbox.embedded.database import DSN_VARIABLE, Database, admin_connection, create_sql, drop_sql
from faststream_outbox.embedded.server import EmbeddedPostgres


@pytest.fixture(scope="session")
def outbox_postgres_server() -> Iterator[Database]:
    """Return the maintenance database of the server under test; override this fixture to choose another server.

    With pytest-xdist each worker has its own session, and with it its own server.
    """
    if dsn := os.environ.get(DSN_VARIABLE):
        yield Database(dsn)
    else:
        with EmbeddedPostgres(fast=True) as server:
            yield server.database


@pytest.fixture(scope="session")
def _outbox_execute(outbox_postgres_server: Database) -> Iterator[Callable[[str], None]]:
    # One connection for the whole run, because connecting is half the cost of a new database.
    with admin_connection(outbox_postgres_server) as execute:
        yield execute


@pytest.fixture
def outbox_postgres(outbox_postgres_server: Database, _outbox_execute: Callable[[str], None]) -> Iterator[Database]:
    """Return a database that only this test uses.

    ```python
    async def test_publish(outbox_postgres):
        engine = create_async_engine(outbox_postgres.url("asyncpg"))
    ```
    """
    database = outbox_postgres_server.sibling()
    _outbox_execute(create_sql(database))
    try:
        yield database
    finally:
        _outbox_execute(drop_sql(database))
