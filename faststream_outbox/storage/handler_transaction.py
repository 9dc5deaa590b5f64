"""A transaction that a handler writes in and only this package commits, together with the deletion of its rows."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from faststream_outbox.storage.commits import is_strict
from faststream_outbox.storage.errors import sqlstate
from faststream_outbox.storage.rows import Lease, NewRow

# A session that is used after its handler has ended would open a transaction that is never committed.
# SQLAlchemy has the keyword since 2.0.22.
_KEYWORD: Final = "close_resets_only"
USED_ONCE: Final[dict[str, Any]] = {_KEYWORD: False} if _KEYWORD in inspect.signature(Session).parameters else {}

_FAILED_TRANSACTION: Final = "25P02"
# The key in a session's `info` of the guard that alone may commit it.
_GUARDED: Final = "faststream_outbox.guarded"


class GuardedTransaction:
    """Begins a session's transaction, refuses commits by others, and commits it only if it is still the same.

    Example:
        transaction = GuardedTransaction(session)
        ...  # the handler
        if await transaction.commit(finish):
            ...  # committed, together with what `finish` wrote

    """

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        sync_session = session.sync_session
        self._root = sync_session.get_transaction() or sync_session.begin()
        self._connections: set[Connection] = set()
        sync_session.info[_GUARDED] = self

    async def commit(self, finish: Callable[[], Awaitable[bool]]) -> bool:
        """Call `finish` in the transaction; commit if it returns True, otherwise roll back and return False.

        If it raises, nothing was committed, unless the connection was lost during the commit.
        """
        try:
            await self._flush()
            try:
                agreed = await finish()
            except DBAPIError as error:
                if sqlstate(error) == _FAILED_TRANSACTION:
                    raise RuntimeError(_ENDED) from error
                raise
            if agreed:
                self.session.sync_session.info.pop(_GUARDED, None)
                await self.session.commit()
            return agreed
        finally:
            await self.rollback()

    async def _flush(self) -> None:
        """Write what the session still holds; raise if the handler has ended the transaction."""
        if not self._root.is_active or self.session.sync_session.get_transaction() is not self._root:
            raise RuntimeError(_ENDED)
        await self.session.flush()

    async def rollback(self) -> None:
        """Roll back, and return the connection to the pool."""
        try:
            await self.session.close()
        except Exception:  # noqa: BLE001 - after any error the connection must not stay checked out
            await self.session.run_sync(self._throw_away)

    def begun(self, connection: Connection) -> None:
        """Record a connection on which the transaction, or a savepoint of it, begins."""
        self._connections.add(connection)

    def _throw_away(self, _session: Session) -> None:
        """Disconnect, which rolls back too: a task that the handler left behind still uses the connection."""
        for connection in self._connections:
            with suppress(Exception):
                connection.invalidate()
            with suppress(Exception):
                connection.close()


_ENDED: Final = (
    "The transaction of the handler's session failed or was ended in the handler, and what was written in it is gone. "
    "The message was not handled. To undo a part, or to go on after an error of the database, write it inside `async "
    "with session.begin_nested()`."
)


def _refuse_commit(session: Session) -> None:
    if _GUARDED in session.info and not session.in_nested_transaction():
        raise RuntimeError(
            "This session is committed when the handler has returned, together with the record that its message was "
            "handled. A commit before that would keep one half of what it does if the rest fails: remove "
            "session.commit() and session.begin(), and use flush() to see what was written."
        )


def _guard_connection(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    """Refuse the commit of a guarded session's connection too: the session would not notice it."""

    def refuse(connection: Connection) -> None:
        try:
            _refuse_commit(session)
        except RuntimeError:
            # After an error here SQLAlchemy does not know what is open, and the pool would reuse the connection.
            connection.invalidate()
            raise

    if _GUARDED in session.info:
        session.info[_GUARDED].begun(connection)
        if not transaction.nested:
            event.listen(connection, "commit", refuse)


# On the class, once, which covers every session. It runs before the application's own listeners of `after_begin`: if
# the transaction has to begin again, they have done nothing in it yet.
event.listen(Session, "before_commit", _refuse_commit)
event.listen(Session, "after_begin", _guard_connection, insert=True)


# Deletes rows and inserts others in a session's transaction; returns whether all leases held. With a head, its lease
# covers all rows.
Delete = Callable[[AsyncSession, Sequence[Lease], Sequence[NewRow], Lease | None], Awaitable[bool]]
# Locks the rows on a connection where a transaction has just begun.
Lock = Callable[[Connection], object]

# The code of the error: another transaction changed a row after this one took its snapshot.
SERIALIZATION_FAILURE: Final = "40001"
# A renewal may come between the snapshot and the lock, but hardly twice: the next one is a third of a lease away.
_ATTEMPTS: Final = 3


class SharedTransaction(GuardedTransaction):
    """A handler's transaction: it commits the handler's writes and deletes its rows, or does neither."""

    def __init__(self, session: AsyncSession, delete: Delete, lock: Lock) -> None:
        super().__init__(session)
        self._delete = delete
        self._lock = lock

    def begun(self, connection: Connection) -> None:
        """Lock the rows first if the isolation is strict: after a renewal of their leases it could not delete them.

        A locked row is not renewed, and no other process can claim it. A connection of another engine takes no lock: it
        would keep us from deleting the rows.
        """
        first = connection not in self._connections
        super().begun(connection)
        if first and connection.engine is self.session.sync_session.bind and is_strict(connection):
            self._lock_first(connection, _ATTEMPTS)

    def _lock_first(self, connection: Connection, attempts: int) -> None:
        try:
            self._lock(connection)
        except DBAPIError as error:
            if sqlstate(error) != SERIALIZATION_FAILURE or attempts == 1:
                raise
            _begin_again(connection)
            self._lock_first(connection, attempts - 1)

    async def settle(self, leases: Sequence[Lease], outputs: Sequence[NewRow], *, head: Lease | None = None) -> bool:
        """Delete the rows, insert the outputs and commit; if one lease was lost, roll back and return False.

        The lease of its head covers all rows of a run.
        """
        return await self.commit(partial(self._delete, self.session, leases, outputs, head))


class GivenTransaction(SharedTransaction):
    """A handler's transaction in a session that a test gave: the rows are deleted in memory, and the test commits.

    The handler may not commit it, as in production. A mock of a session is left alone.
    """

    def __init__(self, session: AsyncSession, delete: Delete) -> None:
        self._is_real = isinstance(getattr(session, "sync_session", None), Session)
        if self._is_real:
            super().__init__(session, delete, lambda _: None)
        else:
            self.session, self._delete = session, delete

    def begun(self, connection: Connection) -> None:
        """Do nothing: the connection is the test's."""

    async def settle(self, leases: Sequence[Lease], outputs: Sequence[NewRow], *, head: Lease | None = None) -> bool:
        """Flush the session, delete the rows and insert the outputs; return False if one lease was lost."""
        try:
            if self._is_real:
                await self._flush()
            return await self._delete(self.session, leases, outputs, head)
        finally:
            await self.rollback()

    async def rollback(self) -> None:
        """Allow commits again, and leave what was written to the test."""
        if self._is_real:
            self.session.sync_session.info.pop(_GUARDED, None)


def _begin_again(connection: Connection) -> None:
    """Give a transaction a newer snapshot; so far only the engine's listeners have done anything in it."""
    try:
        connection.connection.rollback()
        connection.dispatch.begin(connection)
    except BaseException:
        connection.invalidate()  # its state is unknown, and the pool must not reuse it
        raise
