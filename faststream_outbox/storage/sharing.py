"""The transaction that a handler shares with us: its writes, and the deletion of the rows that it handled."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.storage.commits import is_strict
from faststream_outbox.storage.drivers import sqlstate
from faststream_outbox.storage.guard import GuardedTransaction
from faststream_outbox.storage.rows import Lease, NewRow

# Deletes rows, and inserts others, in a session's transaction; tells which leases held.
# With a head, its lease covers all of them.
Delete = Callable[[AsyncSession, Sequence[Lease], Sequence[NewRow], Lease | None], Awaitable[bool]]
# Locks the rows on a connection where a transaction has just begun.
Lock = Callable[[Connection], None]

# A renewal came between the transaction's snapshot and its lock. The next one is a third of a lease away.
_SERIALIZATION_FAILURE: Final = "40001"
_ATTEMPTS: Final = 3


class SharedTransaction(GuardedTransaction):
    """Either the handler's writes are there and its rows are not, or the other way round."""

    def __init__(self, session: AsyncSession, delete: Delete, lock: Lock) -> None:
        super().__init__(session)
        self._delete = delete
        self._lock = lock

    def begun(self, connection: Connection) -> None:
        """Lock the rows first, if the transaction's isolation is so strict that it could not delete them otherwise.

        It could not after a renewal of their leases. A row that is locked is not renewed, and nobody else gets it.
        Another engine that the handler uses beside ours has no part in that: its lock would keep us from the rows.
        """
        first = connection not in self._connections
        super().begun(connection)
        if first and connection.engine is self.session.sync_session.bind and is_strict(connection):
            self._lock_first(connection, _ATTEMPTS)

    def _lock_first(self, connection: Connection, attempts: int) -> None:
        try:
            self._lock(connection)
        except DBAPIError as error:
            if sqlstate(error) != _SERIALIZATION_FAILURE or attempts == 1:
                raise
            _begin_again(connection)
            self._lock_first(connection, attempts - 1)

    async def settle(self, leases: Sequence[Lease], outputs: Sequence[NewRow], *, head: Lease | None = None) -> bool:
        """Delete the rows, insert the outputs and commit; if one lease was lost, roll back all of it: False.

        The rows of a run are covered by the lease of its head.
        """
        return await self.commit(partial(self._settle, leases, outputs, head))

    async def _settle(self, leases: Sequence[Lease], outputs: Sequence[NewRow], head: Lease | None) -> bool:
        return await self._delete(self.session, leases, outputs, head)


def _begin_again(connection: Connection) -> None:
    """Get a transaction a newer snapshot while nothing was done in it, but what the engine's listeners did."""
    try:
        connection.connection.rollback()
        connection.dispatch.begin(connection)
    except BaseException:
        connection.invalidate()  # SQLAlchemy does not know what came of it, and the pool must not hand it on
        raise
