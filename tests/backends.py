"""The stores under test, behind one face: what a test does to the outside world differs, what it expects does not."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from faststream_outbox.storage import (
    Claim,
    ClaimCursor,
    MemoryStore,
    NewRow,
    OutboxRow,
    PostgresStore,
    Store,
    make_dlq_table,
    make_outbox_table,
    make_shards_table,
)
from faststream_outbox.storage.cursor import END
from faststream_outbox.storage.parking import PARKED
from faststream_outbox.storage.schema.tables import quoted_name


def everywhere(*queues: str) -> ClaimCursor:
    """A cursor that has seen its queues to their ends, and so looks everywhere for suspects."""
    cursor = ClaimCursor(queues)
    cursor.reach = dict.fromkeys(queues, END)
    return cursor


@dataclass
class DeadLetter:
    original_id: int
    queue: str
    entity_key: str | None
    payload: bytes
    timer_id: str | None
    attempts_count: int
    deliveries_count: int
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    failure_reason: str
    last_exception: str | None


class Backend(ABC):
    store: Store

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[AsyncSession | None]: ...

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let the store's clock move on."""

    @abstractmethod
    async def dead_letters(self) -> list[DeadLetter]: ...

    async def insert(self, *rows: NewRow) -> list[int]:
        async with self.transaction() as session:
            return [row_id for row in rows if (row_id := await self.store.insert(session, row)) is not None]

    async def rows(self) -> list[OutboxRow]:
        async with self.transaction() as session:
            return await self.store.read(session)

    async def make_suspects(self, *queues: str, limit: int) -> None:
        """Claim rows, and lose them, twice: as two processes do that die one after the other."""
        async with self.store.connect() as lane:
            for _ in range(2):
                await lane.recover(everywhere(*queues))
                assert len((await self.claim(*queues, limit=limit, lease_seconds=1)).rows) == limit
                await self.pass_time(2)

    async def claim(self, *queues: str, limit: int = 100, lease_seconds: float = 60.0) -> Claim:
        """Claim once, as a claimer does that has just started."""
        async with self.store.connect() as lane:
            return await lane.claim(ClaimCursor(queues), limit=limit, lease_seconds=lease_seconds)


class MemoryBackend(Backend):
    def __init__(self, *, keep_dead: bool = True) -> None:
        self._offset = 0.0
        self.store = self.memory = MemoryStore(keep_dead=keep_dead, clock=lambda: time.time() + self._offset)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield None

    async def pass_time(self, seconds: float) -> None:
        self._offset += seconds

    async def dead_letters(self) -> list[DeadLetter]:
        return [
            DeadLetter(
                d.original_id,
                *(d.row.queue, d.row.entity_key, d.row.payload, d.row.timer_id),
                *(d.row.attempts_count, d.row.deliveries_count, d.row.first_attempt_at, d.row.last_attempt_at),
                *(d.failure_reason, d.last_exception),
            )
            for d in self.memory.dead
        ]


class PostgresBackend(Backend):
    store: PostgresStore

    def __init__(
        self, engine: AsyncEngine, *, schema: str | None = None, table_name: str = "outbox", keep_dead: bool = True
    ) -> None:
        self.engine = engine
        self.metadata = MetaData()
        self.outbox_table = make_outbox_table(self.metadata, table_name, schema=schema)
        self.dlq_table = make_dlq_table(self.metadata, f"{table_name}_dlq", schema=schema) if keep_dead else None
        self.shards_table = make_shards_table(self.metadata, f"{table_name}_shards", schema=schema)
        self.table = quoted_name(table_name, schema)
        self.store = PostgresStore(engine, self.outbox_table, dlq_table=self.dlq_table, shards_table=self.shards_table)
        self.sessions = async_sessionmaker(engine, expire_on_commit=False)

    async def create(self) -> None:
        async with self.engine.begin() as connection:
            if self.outbox_table.schema:
                await connection.execute(text(f"CREATE SCHEMA {quoted_name(self.outbox_table.schema)}"))
            await connection.run_sync(self.metadata.create_all)

    async def run(self, statement: str, **values: object) -> Sequence[Sequence[object]]:
        async with self.engine.begin() as connection:
            result = await connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    async def one(self, statement: str, **values: object) -> object:
        return (await self.run(statement, **values))[0][0]

    async def fill(self, count: int, *, queue: str = "q", due: str = "now()", payload_bytes: int = 200) -> None:
        """Put many rows in, quickly."""
        await self.run(
            f"INSERT INTO {self.table} (queue, payload, next_attempt_at) SELECT :queue, "
            f"decode(repeat('ab', {payload_bytes}), 'hex'), {due} FROM generate_series(1, :count) AS n",
            queue=queue,
            count=count,
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        async with self.sessions() as session, session.begin():
            yield session

    async def pass_time(self, seconds: float) -> None:
        columns = [
            "created_at",
            "next_attempt_at",
            "acquired_at",
            "lease_expires_at",
            "first_attempt_at",
            "last_attempt_at",
        ]
        earlier = ", ".join(f"{c} = {c} - make_interval(secs => :seconds)" for c in columns)
        for name in ("parked_at", "due"):  # what is kept among the headers of a parked row
            path = f"headers #> '{{{PARKED},{name}}}'"
            earlier_still = f"to_jsonb(({path})::float8 - CAST(:seconds AS float8))"
            await self.run(
                f"UPDATE {self.table} SET headers = jsonb_set(headers, '{{{PARKED},{name}}}', {earlier_still}) "
                f"WHERE jsonb_typeof({path}) = 'number'",
                seconds=seconds,
            )
        await self.run(f"UPDATE {self.table} SET {earlier}", seconds=seconds)

    async def dead_letters(self) -> list[DeadLetter]:
        if self.dlq_table is None:
            return []
        columns = ", ".join(DeadLetter.__dataclass_fields__)
        dlq = quoted_name(self.dlq_table.name, self.dlq_table.schema)
        return [DeadLetter(*row) for row in await self.run(f"SELECT {columns} FROM {dlq} ORDER BY id")]  # type: ignore[arg-type]  # untyped rows
