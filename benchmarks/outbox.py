"""An outbox table under test, with lanes whose statements are counted."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

import asyncpg
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.measure import Meter
from benchmarks.scenario import Bench
from faststream_outbox.storage import (
    ClaimCursor,
    NewRow,
    PostgresStore,
    StoreLane,
    make_dlq_table,
    make_outbox_table,
)
from faststream_outbox.storage.cursor import ClaimPlan
from faststream_outbox.storage.postgres.drivers import Executor, Records, open_executor
from faststream_outbox.storage.postgres.statements.statement import Statement

# Longer than any scenario takes: a lease that runs out is not what is measured.
LEASE_SECONDS: Final = 3600.0
QUEUE: Final = "orders"
# What FastStream sends with a message.
HEADERS: Final = {"content-type": "application/json", "correlation_id": "9c1f6e0e-5d0c-4c55-9d6a-2f4f7d1f4c3b"}


class CountingExecutor:
    """Passes statements on and counts them."""

    def __init__(self, executor: Executor, meter: Meter) -> None:
        self._executor = executor
        self._meter = meter

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement and return what it returns."""
        self._meter.statements += 1
        return await self._executor.fetch(statement, **values)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Run the statements meanwhile in one transaction, whose beginning and end are statements too."""
        self._meter.statements += 2
        return self._executor.transaction()


class Outbox:
    """One outbox and its dead-letter table, as `PostgresStore` uses them."""

    def __init__(self, bench: Bench, engine: AsyncEngine, name: str) -> None:
        self.bench = bench
        self.engine = engine
        self.name = name
        self._metadata = MetaData()
        self._outbox_table = make_outbox_table(self._metadata, name)
        self._dlq_table = make_dlq_table(self._metadata, f"{name}_dlq")
        self.store = PostgresStore(engine, self._outbox_table, dlq_table=self._dlq_table)

    async def create(self) -> None:
        """Create the tables, anew if they are there."""
        await self.drop()
        async with self.engine.begin() as connection:
            await connection.run_sync(self._metadata.create_all)

    async def drop(self) -> None:
        """Drop the tables."""
        async with self.engine.begin() as connection:
            await connection.run_sync(self._metadata.drop_all)

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[StoreLane]:
        """Open what `PostgresStore.connect` opens, with its statements counted."""
        async with open_executor(self.engine) as executor:
            yield self.store.lane(CountingExecutor(executor, self.bench.meter))

    async def load(self, count: int, columns: str, values: str, *, payload: bytes | None = None) -> None:
        """Put many rows in on the server's side; `n` counts them in `values`."""
        body = self.bench.payload if payload is None else payload
        await self._execute(
            f"INSERT INTO {self.name} (payload, headers, {columns}) "
            f"SELECT decode('{body.hex()}', 'hex'), '{json.dumps(HEADERS)}'::jsonb, {values} "
            f"FROM generate_series(1, {count}) AS n"
        )

    async def vacuum(self) -> None:
        """Leave nothing to do for an autovacuum."""
        await self._execute(f"VACUUM (ANALYZE) {self.name}")

    async def _execute(self, statement: str) -> None:
        """Run a statement on a connection of its own, so that tables can be filled side by side."""
        connection = await asyncpg.connect(self.bench.database.dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def publish(self, rows: Sequence[NewRow], *, batch: int = 1000) -> None:
        """Insert rows as a publisher does that has many, a transaction for each batch."""
        async with self.engine.connect() as connection:
            for start in range(0, len(rows), batch):
                async with connection.begin():
                    await self.store.insert_many(connection, rows[start : start + batch])

    def new_rows(self, count: int) -> list[NewRow]:
        """Make rows of 256 bytes and two headers."""
        return [NewRow(QUEUE, self.bench.payload, headers=HEADERS) for _ in range(count)]


class Content(Protocol):
    """What a table is to hold: so many rows with these columns, one load after the other."""

    @property
    def case(self) -> str:
        """How it is called."""

    @property
    def table(self) -> str:
        """The name of the table."""

    @property
    def loads(self) -> Sequence[tuple[int, str, str]]:
        """How many rows, their columns, and the values of these."""


@asynccontextmanager
async def loaded(bench: Bench, tables: Sequence[Content]) -> AsyncIterator[None]:
    """Have tables that hold what they are to hold, vacuumed; they are dropped at the end."""
    async with bench.engine("asyncpg") as engine:
        outboxes = {Outbox(bench, engine, content.table): content.loads for content in tables}
        bench.say(f"loading {len(outboxes)} tables")
        try:
            async with asyncio.TaskGroup() as tasks:
                for outbox, loads in outboxes.items():
                    tasks.create_task(_load(outbox, loads))
            yield
        finally:
            for outbox in outboxes:
                await outbox.drop()


async def _load(outbox: Outbox, loads: Sequence[tuple[int, str, str]]) -> None:
    await outbox.create()
    for count, columns, values in loads:
        await outbox.load(count, columns, values)
    await outbox.vacuum()


class WatchedCursor(ClaimCursor):
    """A cursor that records whether its last claim was a sweep."""

    swept = False

    def plan(self, limit: int, now: float) -> ClaimPlan:
        """Decide as the parent class does, and record whether it is a sweep."""
        plan = super().plan(limit, now)
        self.swept = plan.sweep
        return plan


def check_once(claimed: Sequence[int], expected: int) -> None:
    """Refuse a measurement in which a row was handed out twice, or not at all."""
    different = len(set(claimed))
    if not different == len(claimed) == expected:
        raise AssertionError(f"{expected} rows were there, {len(claimed)} were claimed, {different} of them different.")
