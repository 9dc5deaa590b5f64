"""A handler's transaction, which deletes its rows last: how, whatever the connection has planned before."""

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox.storage import ClaimCursor, NewRow, PostgresStore
from faststream_outbox.storage.postgres.statements.rows import LANE_SETTINGS
from tests.backends import PostgresBackend

BACKLOG = 20_000
# Drivers prepare a statement, and Postgres keeps its plan, after a handful of executions each.
OFTEN = 15
ROWS_READ = "SELECT coalesce(sum(seq_tup_read), 0)::int FROM pg_stat_xact_user_tables WHERE relname = 'outbox'"


@pytest.fixture
async def one_connection(postgres: PostgresBackend) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(postgres.engine.url, pool_size=1, max_overflow=0)
    yield engine
    await engine.dispose()


async def settle(postgres: PostgresBackend, store: PostgresStore, cursor: ClaimCursor, outputs: list[NewRow]) -> None:
    async with postgres.store.connect() as lane:
        rows = (await lane.claim(cursor, limit=1, lease_seconds=60)).rows
    leases = [row.lease for row in rows]
    assert await store.share_transaction(leases).settle(leases, outputs)


@pytest.mark.parametrize("outputs", [[], [NewRow("other", b"")]], ids=["plain", "outputs"])
async def test_a_plan_made_while_the_table_was_small_suits_a_large_one(
    postgres: PostgresBackend, one_connection: AsyncEngine, outputs: list[NewRow]
) -> None:
    store, cursor, read = PostgresStore(one_connection, postgres.outbox_table), ClaimCursor(["q"]), list[int]()

    def before_commit(connection: Any) -> None:
        read.append(connection.exec_driver_sql(ROWS_READ).scalar_one())

    await postgres.fill(OFTEN)
    async with postgres.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("VACUUM ANALYZE outbox"))
    for _ in range(OFTEN):
        await settle(postgres, store, cursor, outputs)
    await postgres.fill(BACKLOG)
    event.listen(one_connection.sync_engine, "commit", before_commit)
    await settle(postgres, store, cursor, outputs)
    assert len(read) == 1
    assert read[0] < BACKLOG, "all of the table was read for one row"


async def test_the_users_settings_are_there_before_and_after(
    postgres: PostgresBackend, one_connection: AsyncEngine
) -> None:
    store, shown = PostgresStore(one_connection, postgres.outbox_table), list[Any]()
    show = text(f"SELECT {', '.join(f'current_setting({name!r})' for name in LANE_SETTINGS)}")
    for _ in range(2):
        await postgres.fill(1)
        [row] = (await postgres.claim("q")).rows
        transaction = store.share_transaction([row.lease])
        shown.append((await transaction.session.execute(show)).one())
        assert await transaction.settle([row.lease], [])
    assert shown[0] == shown[1] != tuple(LANE_SETTINGS.values())


_ORDER = """
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

order = []
event.listen(Session, "after_begin", lambda *_: order.append("application"))

from faststream_outbox.storage import guard

class Guard:
    def begun(self, connection):
        order.append("guard")

session = Session(create_engine("sqlite://"), info={guard._GUARDED: Guard()})
session.connection()
print(*order)
"""


def test_an_application_that_listens_to_transactions_comes_after_us() -> None:
    """What it does as one begins would be lost, should that have to begin again; even if it came before our import."""
    told = subprocess.run([sys.executable, "-c", _ORDER], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["guard", "application"]
