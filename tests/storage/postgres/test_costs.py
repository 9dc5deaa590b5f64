"""What an operation costs, in counters that do not wander: statements, heap-only updates, bytes of log, buffers."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncConnection

from faststream_outbox.storage import (
    Ack,
    ClaimCursor,
    Dead,
    NewRow,
    OutboxRow,
    Outcome,
    Retry,
    Settlement,
    StoreLane,
)
from faststream_outbox.storage.postgres.drivers import Records, open_executor
from faststream_outbox.storage.postgres.statements import Statements
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.backends import PostgresBackend
from tests.storage.postgres.statements.test_statements import LEASE, LEASES, TOKEN


class Counting:
    """An executor that counts what passes through it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.count = 0

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        self.count += 1
        records: Records = await self._inner.fetch(statement, **values)
        return records

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        self.count += 2
        transaction: AbstractAsyncContextManager[Any] = self._inner.transaction()
        return transaction


@asynccontextmanager
async def counted_lane(backend: PostgresBackend) -> AsyncIterator[tuple[StoreLane, Counting]]:
    async with open_executor(backend.engine) as executor:
        counting = Counting(executor)
        yield backend.store.lane(counting), counting


async def test_statements_per_operation(postgres: PostgresBackend) -> None:
    await postgres.fill(1000)
    async with counted_lane(postgres) as (lane, counting):
        rows = (await lane.claim(ClaimCursor(["q"]), limit=900, lease_seconds=60)).rows
        assert (len(rows), counting.count) == (900, 1)
        await lane.renew([row.lease for row in rows], lease_seconds=60)
        assert counting.count == 2
        await lane.release(rows[:100])
        assert counting.count == 3
        outcomes: list[Outcome] = [Ack(), Retry(5, 1), Dead("rejected", "x")]
        settled = await lane.settle(Settlement(row.lease, outcomes[n % 3]) for n, row in enumerate(rows[100:]))
        assert len(settled.held) == 800
        assert counting.count == 6, "one for each kind of outcome"
        await lane.settle([])
        await lane.renew([], lease_seconds=60)
        await lane.release([])
        assert counting.count == 6, "nothing to do is nothing sent"


async def test_statements_per_insert(postgres: PostgresBackend) -> None:
    sent: list[str] = []
    event.listen(
        postgres.engine.sync_engine, "before_cursor_execute", lambda _c, _k, statement, *_: sent.append(statement)
    )
    async with postgres.transaction() as session:
        await postgres.store.insert(session, NewRow("q", b""))
        assert len(sent) == 1
        await postgres.store.insert(session, NewRow("q", b"", key="k", timer_id="t"), timer_conflict="extend")
        assert len(sent) == 2, "a second one only for a timer that is there already"
        await postgres.store.insert_many(session, [NewRow("q", b"", key=str(n)) for n in range(1000)])
        assert len(sent) == 3


async def test_what_rows_share_is_sent_once(postgres: PostgresBackend) -> None:
    sent: list[Any] = []
    event.listen(
        postgres.engine.sync_engine, "before_cursor_execute", lambda _c, _k, _s, values, *_: sent.append(values)
    )
    row = NewRow("q", b"payload", {"name": "value"})
    async with postgres.transaction() as session:
        await postgres.store.insert_many(session, [row] * 1000)
    values = sent[0].values() if isinstance(sent[0], dict) else sent[0]
    assert [value for value in values if isinstance(value, list)] == [[b"payload"] * 1000]


async def updates(connection: AsyncConnection) -> tuple[int, int]:
    """Count the updates of this transaction, and those that touched no index."""
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'outbox'"
    updated, heap_only = (await connection.execute(text(counts))).one()
    return updated, heap_only


@pytest.mark.parametrize("payload_bytes", [200, 256, 1000])
async def test_every_claim_is_heap_only(postgres: PostgresBackend, payload_bytes: int) -> None:
    await postgres.fill(3000, payload_bytes=payload_bytes)
    async with postgres.engine.begin() as connection:
        lane, cursor = postgres.store.borrow(connection), ClaimCursor(["q"])
        rows: list[OutboxRow] = []
        while claimed := (await lane.claim(cursor, limit=100, lease_seconds=60)).rows:
            rows += claimed
        assert len(rows) == 3000
        assert await updates(connection) == (3000, 3000)


async def test_a_claim_at_full_pages_is_not_heap_only(postgres: PostgresBackend) -> None:
    """The counter above can fail: without room in the pages it does."""
    await postgres.run("ALTER TABLE outbox SET (fillfactor = 100)")
    await postgres.fill(3000)
    async with postgres.engine.begin() as connection:
        await postgres.store.borrow(connection).claim(ClaimCursor(["q"]), limit=3000, lease_seconds=60)
        updated, heap_only = await updates(connection)
    assert updated == 3000
    assert heap_only < 300


async def wal_bytes(backend: PostgresBackend, explained: str) -> float:
    """Run a statement and tell the bytes of log it wrote; full-page images, if any, are written by the first try."""
    for _ in range(3):
        async with backend.engine.connect() as connection:
            await connection.execute(text("SELECT count(*) FROM outbox"))
            plan = (await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) {explained}")).scalar_one()
            await connection.rollback()
        root = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
        if not root["WAL FPI"]:
            return float(root["WAL Bytes"])
    raise AssertionError("full-page images again and again")


def with_values(statement: Statement, values: dict[str, str]) -> str:
    """Write values into a statement in the place of its parameters."""
    return re.sub(r"\$(\d+)", lambda match: statement.bind(values)[int(match[1]) - 1], statement.text)


async def test_wal_per_row(postgres: PostgresBackend) -> None:
    statements = Statements(postgres.outbox_table, postgres.dlq_table)
    await postgres.fill(1000)
    queues = {"claim_queue": "ARRAY['q']", "claim_quota": "ARRAY[500]"}
    start = {"claim_at": "ARRAY['-infinity'::float8]", "claim_id": "ARRAY[0]"}
    claim = with_values(statements.claim.claim, {**LEASE, **queues, **start, "limit": "500", "max_bytes": "8000000"})
    assert await wal_bytes(postgres, claim) / 500 <= 200
    await postgres.run(f"UPDATE outbox SET acquired_token = '{TOKEN}' WHERE id <= 500")
    delete = with_values(statements.settle.delete_batch, LEASES)
    assert await wal_bytes(postgres, delete) / 500 <= 75


async def test_connections_are_one_per_lane(postgres: PostgresBackend) -> None:
    mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    await postgres.fill(10)
    await postgres.engine.dispose()
    async with postgres.store.connect() as claimer, postgres.store.connect() as settler:
        rows = (await claimer.claim(ClaimCursor(["q"]), limit=10, lease_seconds=60)).rows
        await settler.settle(Settlement(row.lease, Ack()) for row in rows)
        assert await postgres.one(mine) == 2
