"""Connections of the drivers themselves, which a caller may publish through in place of a session."""

import sys
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from sqlalchemy.util import await_only

if TYPE_CHECKING:
    import psycopg


class AsyncpgLike(Protocol):
    """What an `asyncpg.Connection`, or what its pool lends, looks like: asyncpg need not have types."""

    def is_in_transaction(self) -> bool:
        """Return whether the connection is in a transaction."""

    def get_server_pid(self) -> int:
        """Return the id of the server process."""


# psycopg is optional, so these are read by type checkers only.
if TYPE_CHECKING:
    AsyncDriverConnection: TypeAlias = AsyncpgLike | psycopg.AsyncConnection[Any] | psycopg.AsyncCursor[Any]
    DriverConnection: TypeAlias = psycopg.Connection[Any] | psycopg.Cursor[Any]
else:
    AsyncDriverConnection = DriverConnection = Any

# The states of psycopg's connections, by libpq's numbers: idle, waiting for answers, and unknown after a loss.
_IDLE: Final = 0
_ACTIVE: Final = 1
_UNKNOWN: Final = 4


class RawConnection(ABC):
    """A driver's connection, in the caller's transaction.

    Example:
        raw = raw_connection(connection)
        raw.check_transaction()

    """

    asynchronous = True
    # What to write to get a transaction.
    _begin: str

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether the connection is in a transaction, as far as its driver knows without asking the server."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed, or its pool lends it no more."""
        return False

    @property
    def begins(self) -> bool:
        """Whether a statement begins a transaction that is not open yet."""
        return False

    def check_transaction(self) -> None:
        """Raise if a statement would commit itself: the message would exist even if the caller's changes fail."""
        if not (self.in_transaction or self.begins):
            if self.is_closed:
                raise RuntimeError(
                    "This connection is closed, or went back to its pool. Publish through the connection of your open "
                    f"transaction, inside `{self._begin}`."
                )
            raise RuntimeError(
                "This connection is in no transaction, and each of its statements commits itself: the message would be "
                f"sent even if your other changes fail. Publish inside `{self._begin}`."
            )


class AsyncpgConnection(RawConnection):
    """A connection of asyncpg, or one that its pool lends."""

    _begin = "async with connection.transaction():"

    @property
    def in_transaction(self) -> bool:
        """Whether the server said so with its last answer; a connection that is closed or released is in none."""
        try:
            return bool(self.connection.is_in_transaction())
        except (sys.modules["asyncpg"].InterfaceError, AttributeError):  # after `terminate()` the latter
            return False

    @property
    def is_closed(self) -> bool:
        """Whether it is closed, or a pool has it again, which then raises at each call."""
        try:
            return bool(self.connection.is_closed())
        except sys.modules["asyncpg"].InterfaceError:
            return True


class PsycopgAsyncConnection(RawConnection):
    """An `AsyncConnection` of psycopg 3."""

    _begin = "async with connection.transaction():"

    @property
    def in_transaction(self) -> bool:
        """Whether libpq says so, or answers are on their way."""
        return self.connection.info.transaction_status not in (_IDLE, _UNKNOWN)

    @property
    def is_closed(self) -> bool:
        """Whether it is closed, or was lost."""
        return bool(self.connection.closed)

    @property
    def begins(self) -> bool:
        """Whether the connection is not in autocommit: its first statement begins a transaction."""
        return not self.connection.autocommit

    def check_transaction(self) -> None:
        """Raise if a statement would commit itself; in autocommit, ask the server in a pipeline."""
        # libpq knows the state when the answers are there: statements in a pipeline may begin a transaction, or end it.
        if self.connection.autocommit and self.connection.info.transaction_status == _ACTIVE:
            self._wait_for_answers()
        super().check_transaction()

    def _wait_for_answers(self) -> None:
        async def enter() -> None:
            async with self.connection.pipeline():  # the one that is open, which waits for all answers
                pass

        await_only(enter())


class PsycopgConnection(PsycopgAsyncConnection):
    """A synchronous `Connection` of psycopg 3."""

    asynchronous = False
    _begin = "with connection.transaction():"

    def _wait_for_answers(self) -> None:
        with self.connection.pipeline():
            pass


def raw_connection(session: object) -> RawConnection | None:
    """Return what a driver's connection, or a cursor of psycopg, publishes through; None for anything else."""
    kind = _kind(cast("Any", type(session)))
    if kind is None:
        return None
    if kind is RawConnection:
        return cast("RawConnection", session)
    is_cursor = kind is not AsyncpgConnection and not hasattr(session, "autocommit")
    return kind(cast("Any", session).connection if is_cursor else session)


@lru_cache(maxsize=64)
def _kind(kind: type[Any]) -> type[RawConnection] | None:
    # Asked several times for each message, and there are few types. A driver that is not imported has made no
    # connection.
    asyncpg, psycopg = sys.modules.get("asyncpg"), sys.modules.get("psycopg")
    if issubclass(kind, RawConnection):
        return RawConnection
    if asyncpg is not None and issubclass(kind, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        return AsyncpgConnection
    if psycopg is not None and issubclass(kind, psycopg.AsyncConnection | psycopg.AsyncCursor):
        return PsycopgAsyncConnection
    if psycopg is not None and issubclass(kind, psycopg.Connection | psycopg.Cursor):
        return PsycopgConnection
    return None
