"""What a publisher does with a store: insert rows and cancel timers, in the caller's transaction."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from faststream_outbox.storage.checks import check_name, check_payloads
from faststream_outbox.storage.rows import AlikeRows, NewRow, payloads_of
from faststream_outbox.storage.sessions.raw import AsyncDriverConnection, DriverConnection, raw_connection

_P = ParamSpec("_P")
_T = TypeVar("_T")

TimerConflict = Literal["ignore", "extend"]
"""If a message with the same `timer_id` waits: ignore the new one, or extend the delay of the waiting one."""

# What a caller publishes through; the memory store, which has no transactions, takes None too.
SessionOrConnection = AsyncSession | AsyncConnection | async_scoped_session[AsyncSession] | AsyncDriverConnection


class PublishingStore(ABC):
    """The part of a store that publishers use."""

    # Whether rows become visible with the caller's commit; in memory they are visible at once.
    has_transactions: bool = True
    # The name of the table; writers of several tables take their locks in its order.
    name: str = ""

    async def insert(
        self,
        session: SessionOrConnection | None,
        row: NewRow,
        *,
        timer_conflict: TimerConflict = "ignore",
        notify: bool = False,
    ) -> int | None:
        """Insert one row; None if its timer exists already, which `extend` moves to the later deadline if it is free.

        With `notify` the commit notifies listeners; the price is that such commits wait for each other.
        """
        return await self.run(session, self.insert_sync, row, timer_conflict, notify=notify)

    def insert_sync(
        self,
        session: Session | Connection | DriverConnection,
        row: NewRow,
        timer_conflict: TimerConflict = "ignore",
        *,
        notify: bool = False,
    ) -> int | None:
        """Insert one row through a synchronous session or connection."""
        check_row(row)
        check_timer_conflict(timer_conflict, row.timer_id)
        return self._insert(session, row, timer_conflict, notify=notify)

    async def insert_many(
        self, session: SessionOrConnection | None, rows: Iterable[NewRow], *, notify: bool = False
    ) -> list[int]:
        """Insert rows in one statement; the ids are in the order of the rows. Insert timers one by one."""
        new = rows if isinstance(rows, AlikeRows) else list(rows)
        return await self.run(session, self.insert_many_sync, new, notify=notify)

    def insert_many_sync(
        self, session: Session | Connection | DriverConnection, rows: Sequence[NewRow], *, notify: bool = False
    ) -> list[int]:
        """Insert rows through a synchronous session or connection."""
        check_batch(rows)
        return self._insert_many(session, rows, notify=notify) if rows else []

    def insert_collected(
        self, session: Session, rows: Sequence[NewRow], conflicts: Sequence[TimerConflict], *, notify: bool = False
    ) -> list[int | None]:
        """Insert rows, timers among them, in one statement; return the id of each, None for a timer that waits already.

        `conflicts` has, for each row, what happens if its timer waits already.
        """
        for row in rows:
            check_row(row)
        return self._insert_collected(session, rows, conflicts, notify=notify) if rows else []

    async def cancel_timer(self, session: SessionOrConnection | None, *, queue: str, timer_id: str) -> bool:
        """Delete a timer that is not in flight; False if it is in flight or does not exist."""
        check_name("queue", queue)
        check_name("timer_id", timer_id)
        return await self.run(session, self._cancel_timer, queue, timer_id)

    @abstractmethod
    async def run(
        self, session: Any, function: Callable[Concatenate[Any, _P], _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Check the session and call the function with its synchronous one, in the caller's transaction."""

    @abstractmethod
    def _insert(self, session: Any, row: NewRow, timer_conflict: TimerConflict, *, notify: bool) -> int | None: ...

    @abstractmethod
    def _insert_many(self, session: Any, rows: Sequence[NewRow], *, notify: bool) -> list[int]: ...

    @abstractmethod
    def _cancel_timer(self, session: Any, queue: str, timer_id: str) -> bool: ...

    @abstractmethod
    def _insert_collected(
        self, session: Any, rows: Sequence[NewRow], conflicts: Sequence[TimerConflict], *, notify: bool
    ) -> list[int | None]: ...


def check_session(session: object) -> None:
    """Raise unless this is an asynchronous session or connection."""
    if isinstance(session, AsyncSession | AsyncConnection | async_scoped_session):
        return
    raw = raw_connection(session)
    if raw is None or not raw.asynchronous:
        raise TypeError(
            "session is the AsyncSession or AsyncConnection of your open transaction, or a connection of asyncpg or "
            f"psycopg, not {type(session).__name__}. async with async_sessionmaker(engine)() as session, "
            "session.begin(): …"
        )


def check_row(row: object) -> None:
    """Raise unless this is a `NewRow`."""
    if not isinstance(row, NewRow):
        raise TypeError(f"row is a NewRow(queue, payload, …), not {type(row).__name__}.")


def check_batch(rows: Sequence[NewRow]) -> None:
    """Raise for a row that cannot be inserted together with others."""
    for row in [rows.first] if isinstance(rows, AlikeRows) else rows:
        check_row(row)
        if row.timer_id is not None:  # a batch could not say which timers existed already
            raise ValueError(f"A batch takes no timer_id ({row.timer_id!r}): publish timers one by one.")
    check_payloads(payloads_of(rows))


def check_timer_conflict(value: Any, timer_id: str | None) -> None:
    """Raise unless this is a `TimerConflict`, and that of a timer."""
    if value not in ("ignore", "extend"):
        raise ValueError(f'timer_conflict is "ignore" or "extend", not {value!r}.')
    if value != "ignore" and timer_id is None:
        raise ValueError(f"timer_conflict={value!r} applies to timers only: give a timer_id.")
