"""Single operations on rows, for programs that do their own consuming.

`insert`, `insert_batch` and `cancel_timer` write in the caller's transaction, which the caller commits. `fetch` and the
methods that settle use an open transaction of the connection too; without one they commit by themselves.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from faststream_outbox.storage import (
    Ack,
    ClaimCursor,
    Dead,
    Lease,
    MemoryStore,
    NewRow,
    OutboxRow,
    PostgresStore,
    Retry,
    SessionOrConnection,
    Settlement,
    Store,
    StoreLane,
    TimerConflict,
)
from faststream_outbox.storage.checks import check_number
from faststream_outbox.storage.memory.lane import MemoryLane
from faststream_outbox.storage.memory.table import DeadRow

# Every 16th fetch looks for a row with an expired lease first; a queue that is never empty would hide them.
_SUSPECTS_EVERY: Final = 16


@dataclass(frozen=True, slots=True)
class _RetryEntry:
    """One row of a batch of retries."""

    message_id: int
    acquired_token: UUID
    delay_seconds: float
    attempts_count: int
    first_attempt_at: datetime
    last_attempt_at: datetime

    @property
    def settlement(self) -> Settlement:
        retry = Retry(self.delay_seconds, self.attempts_count, self.first_attempt_at, self.last_attempt_at)
        return Settlement(Lease(self.message_id, self.acquired_token), retry)


class AbstractOutboxClient(ABC):
    """The operations of a client on any store; the single forms call the batch forms."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._cursors: dict[tuple[str, ...], ClaimCursor] = {}
        self._fetches = 0

    @abstractmethod
    def _lane(self, conn: AsyncConnection | None) -> StoreLane:
        """Return the lane that runs on the caller's connection."""

    async def insert(
        self, session: SessionOrConnection | None, row: NewRow, *, timer_conflict: TimerConflict = "ignore"
    ) -> int | None:
        """Insert one row; return its id, or None if its timer waits already.

        Args:
            session: The `AsyncSession` or `AsyncConnection` of your transaction.
            row: The message.
            timer_conflict: If a message with its `timer_id` waits: "ignore" the new one, or "extend" the delay of the
                waiting one.

        """
        return await self.store.insert(session, row, timer_conflict=timer_conflict)

    async def insert_batch(self, session: SessionOrConnection | None, rows: Sequence[NewRow]) -> list[int]:
        """Insert rows in one statement; return their ids in order.

        Args:
            session: The `AsyncSession` or `AsyncConnection` of your transaction.
            rows: The messages.

        """
        return await self.store.insert_many(session, rows)

    async def cancel_timer(self, *, queue: str, timer_id: str, session: SessionOrConnection | None) -> bool:
        """Delete a timer; return False if there is none, or it is in flight.

        Args:
            queue: The name of its queue.
            timer_id: The name that it was inserted with.
            session: The `AsyncSession` or `AsyncConnection` of your transaction.

        """
        return await self.store.cancel_timer(session, queue=queue, timer_id=timer_id)

    async def fetch_unprocessed(
        self, *, session: SessionOrConnection | None, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxRow]:
        """Read rows without leasing them.

        Args:
            session: The `AsyncSession` or `AsyncConnection` to read through.
            queue: Rows of this queue only; by default of all queues.
            limit: The largest number of rows to return.

        """
        return await self.store.read(session, queue=queue, limit=limit)

    async def fetch(
        self, conn: AsyncConnection | None, queues: Sequence[str], *, limit: int, lease_ttl_seconds: float
    ) -> list[OutboxRow]:
        """Lease due rows, or one row with an expired lease: alone, because it may crash its process.

        Args:
            conn: A live `AsyncConnection`; a `FakeOutboxClient` takes None.
            queues: The names of the queues.
            limit: The largest number of rows.
            lease_ttl_seconds: After how many seconds others may claim them.

        """
        lane, cursor = self._lane(conn), ClaimCursor(queues)
        cursor = self._cursors.setdefault(cursor.queues, cursor)
        check_number("lease_ttl_seconds", lease_ttl_seconds)
        self._fetches += 1
        rows: list[OutboxRow] = []
        if self._fetches % _SUSPECTS_EVERY:
            rows = (await lane.claim(cursor, limit=limit, lease_seconds=lease_ttl_seconds)).rows
        if not rows:
            rows = (await lane.claim_suspect(cursor, lease_seconds=lease_ttl_seconds)).rows
        if not rows:
            rows = (await lane.claim(cursor, limit=limit, lease_seconds=lease_ttl_seconds)).rows
        return rows

    async def delete_with_lease(
        self, conn: AsyncConnection | None, message_id: int, acquired_token: UUID, *, dead: Dead | None = None
    ) -> bool:
        """Delete one row; return False if its lease was lost.

        Args:
            conn: A live `AsyncConnection`; a `FakeOutboxClient` takes None.
            message_id: The id of the row.
            acquired_token: The token of its lease.
            dead: Why the message failed for good: the row moves to the dead-letter table.

        """
        return bool(await self._settle(conn, [Settlement(Lease(message_id, acquired_token), dead or Ack())]))

    async def delete_batch_with_lease(
        self, conn: AsyncConnection | None, pairs: Iterable[tuple[int, UUID]]
    ) -> set[int]:
        """Delete rows in one round trip; return the ids whose lease still held.

        Args:
            conn: A live `AsyncConnection`; a `FakeOutboxClient` takes None.
            pairs: The id and the token of each row.

        """
        return await self._settle(conn, [Settlement(Lease(*pair), Ack()) for pair in pairs])

    async def mark_pending_with_lease(
        self,
        conn: AsyncConnection | None,
        message_id: int,
        acquired_token: UUID,
        *,
        delay_seconds: float,
        attempts_count: int,
        first_attempt_at: datetime,
        last_attempt_at: datetime,
    ) -> bool:
        """Reschedule one row; return False if its lease was lost.

        Args:
            conn: A live `AsyncConnection`; a `FakeOutboxClient` takes None.
            message_id: The id of the row.
            acquired_token: The token of its lease.
            delay_seconds: After how many seconds it is due again.
            attempts_count: How often it has failed now.
            first_attempt_at: When it first failed.
            last_attempt_at: When it failed this time.

        """
        entry = _RetryEntry(
            message_id, acquired_token, delay_seconds, attempts_count, first_attempt_at, last_attempt_at
        )
        return bool(await self.mark_pending_batch_with_lease(conn, [entry]))

    async def mark_pending_batch_with_lease(
        self, conn: AsyncConnection | None, entries: Sequence[_RetryEntry]
    ) -> set[int]:
        """Reschedule rows in one round trip, each after its own delay; return the ids whose lease still held.

        Args:
            conn: A live `AsyncConnection`; a `FakeOutboxClient` takes None.
            entries: The rows, each with what `mark_pending_with_lease` takes.

        """
        return await self._settle(conn, [entry.settlement for entry in entries])

    async def _settle(self, conn: AsyncConnection | None, settlements: Sequence[Settlement]) -> set[int]:
        lane = self._lane(conn)  # checks the connection, even if there is nothing to settle
        if not settlements:
            return set()
        settled = await lane.settle(settlements)
        for error in settled.failed.values():
            raise error
        return {lease.row_id for lease in settled.held}

    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Raise `RuntimeError` with everything that the live tables lack.

        Args:
            check_autovacuum: Whether other autovacuum settings than those of a new table are an error too.

        """
        await self.store.validate_schema(check_autovacuum=check_autovacuum)

    async def ping(self) -> bool:
        """Return whether the store answers and takes writes."""
        try:
            async with self.store.connect() as lane:
                await lane.ping()
        except Exception:  # noqa: BLE001 - any error means that it does not answer
            return False
        return True


class OutboxClient(AbstractOutboxClient):
    """The client on Postgres.

    Args:
        engine: The engine, yours to dispose of; None for a client that only inserts.
        outbox_table: The table of messages.
        dlq_table: The table of dead letters. Without one, messages that failed for good are deleted.
        shards_table: The table of shard leases, for `HashShards()`.
        control_table: The table of paused queues.
        audit_table: The table of what operators did.
        nodes_table: The table of running processes.

    Example:
        client = OutboxClient(engine, outbox_table)
        async with engine.connect() as conn:
            for row in await client.fetch(conn, ["orders"], limit=10, lease_ttl_seconds=60):
                await client.delete_with_lease(conn, row.id, row.acquired_token)

    """

    store: PostgresStore

    def __init__(
        self,
        engine: AsyncEngine | None,
        outbox_table: Table,
        *,
        dlq_table: Table | None = None,
        shards_table: Table | None = None,
        control_table: Table | None = None,
        audit_table: Table | None = None,
        nodes_table: Table | None = None,
    ) -> None:
        store = PostgresStore(
            engine,
            outbox_table,
            dlq_table=dlq_table,
            shards_table=shards_table,
            control_table=control_table,
            audit_table=audit_table,
            nodes_table=nodes_table,
        )
        super().__init__(store)

    @property
    def engine(self) -> AsyncEngine | None:
        """Return the engine, which belongs to the caller."""
        return self.store.engine

    @property
    def table(self) -> Table:
        """Return the outbox table."""
        return self.store.outbox_table

    def _lane(self, conn: AsyncConnection | None) -> StoreLane:
        if not isinstance(conn, AsyncConnection):
            raise TypeError(
                f"OutboxClient needs a live AsyncConnection, not {type(conn).__name__}: "
                "async with engine.connect() as conn."
            )
        return self.store.borrow(conn)


class FakeOutboxClient(AbstractOutboxClient):
    """The client on rows in memory; connections and sessions may be None.

    One difference to Postgres: `next_attempt_at` follows `clock`, by default that of the process, not the server's
    `now()`.

    Args:
        dlq_enabled: Whether dead letters are kept, in `dlq_rows`.
        clock: Returns the time, in seconds since 1970.

    Example:
        client = FakeOutboxClient()
        client.feed(NewRow("orders", b"1"))
        [row] = await client.fetch(None, ["orders"], limit=10, lease_ttl_seconds=60)
        assert await client.delete_with_lease(None, row.id, row.acquired_token)

    """

    store: MemoryStore

    def __init__(self, *, dlq_enabled: bool = True, clock: Callable[[], float] = time.time) -> None:
        super().__init__(MemoryStore(keep_dead=dlq_enabled, clock=clock))

    @property
    def rows(self) -> list[OutboxRow]:
        """Return the rows, oldest first."""
        return list(self.store.rows.values())

    @property
    def dlq_rows(self) -> list[DeadRow]:
        """Return the dead letters, in the order in which the rows failed."""
        return list(self.store.dead)

    def feed(self, row: NewRow) -> int | None:
        """Insert a row as another program would; return its id, or None if its timer waits already.

        Subscribers whose loops run are woken, as by a notification.

        Args:
            row: The message.

        """
        return self.store.feed(row)

    def _lane(self, conn: AsyncConnection | None) -> StoreLane:
        del conn
        return MemoryLane(self.store)
