"""The client without a database."""

import time
from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncConnection

from faststream_outbox.client import AbstractOutboxClient
from faststream_outbox.storage import MemoryStore, NewRow, OutboxRow, StoreConnection
from faststream_outbox.storage.memory import DeadRow
from faststream_outbox.storage.memory_lane import MemoryConnection


class FakeOutboxClient(AbstractOutboxClient):
    """The client on rows in memory; connections and sessions may be None.

    The one difference to know: `next_attempt_at` follows `clock`, the process's own by default, where Postgres takes
    the server's `now()`.

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
        """The rows that are there, oldest first."""
        return list(self.store.rows.values())

    @property
    def dlq_rows(self) -> list[DeadRow]:
        """The rows that failed for good, in the order in which they did."""
        return list(self.store.dead)

    def feed(self, row: NewRow) -> int:
        """Put a row in, whoever is listening."""
        return self.store.add(row)

    def _lane(self, conn: AsyncConnection | None) -> StoreConnection:
        del conn
        return MemoryConnection(self.store)
