"""The contract of a store: everything that publishers, subscribers and operators do with rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from faststream_outbox.storage.checks import check_count, check_name, check_payloads
from faststream_outbox.storage.commits import AnySession
from faststream_outbox.storage.cursor import ClaimCursor
from faststream_outbox.storage.handler_transaction import SharedTransaction
from faststream_outbox.storage.ordering.key_cursor import KeyCursor, RunClaim
from faststream_outbox.storage.ordering.states import KeyAction, KeyState, KeyStateName, wanted_states
from faststream_outbox.storage.ordering.strategies import Shard, ShardHolder
from faststream_outbox.storage.outcomes import Settled, Settlement
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow

_P = ParamSpec("_P")
_T = TypeVar("_T")

TimerConflict = Literal["ignore", "extend"]

# What one claim brings at most: so many bytes, and one row more; and so many rows of keys.
MAX_BYTES: Final = 8 * 2**20
MAX_ROWS: Final = 1_000
# How many rows of a queue, and of how many queues, `unserved` counts.
MOST_COUNTED: Final = 1000
MOST_QUEUES: Final = 100

# What a caller publishes through; the memory store, which has no transactions, takes None too.
SessionOrConnection = AsyncSession | AsyncConnection | async_scoped_session[AsyncSession]


@dataclass(frozen=True, slots=True)
class Claim:
    """The rows of one claim.

    `expires_at` is on this process's clock of leases, counted from before the claim was sent: after it another process
    may have claimed a row, whatever its clock shows. `more` says that another claim is likely to find rows.
    """

    rows: list[OutboxRow]
    expires_at: float
    more: bool


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue as an operator sees it. Ages are seconds by the database's clock, None where there is no such row.

    `ready` rows can be claimed, those with a key only if their head, the first row, can. Rows behind a head that
    cannot are `blocked`, also while it is being handled, and so is a head that is parked. Behind a head that is ready
    each row counts by itself, although one that is not due yet will stop those after it. `blocked_keys` counts the keys
    that `fetch_keys` lists (retrying, delayed, parked, expired), `parked_keys` those that wait for an operator.
    `oldest_due_age` is for how long the oldest row has been due that is ready, in flight or expired.
    """

    queue: str
    ready: int = 0
    scheduled: int = 0
    in_flight: int = 0
    expired: int = 0
    blocked: int = 0
    dead: int = 0
    blocked_keys: int = 0
    parked_keys: int = 0
    oldest_ready_age: float | None = None
    oldest_age: float | None = None
    oldest_due_age: float | None = None

    @property
    def total(self) -> int:
        """The number of rows of the queue that are not settled yet."""
        return self.ready + self.scheduled + self.in_flight + self.expired + self.blocked


class StoreLane(ABC):
    """One connection to the store, for one loop; each operation commits by itself, nearly all in one statement.

    `row_type` may be set to a subclass of `OutboxRow`: claimed rows are then made of it and need no copying.

    Example:
        async with store.connect() as lane:
            cursor = ClaimCursor(["orders"])
            claim = await lane.claim(cursor, limit=100, lease_seconds=60)
            settled = await lane.settle(Settlement(row.lease, Ack()) for row in claim.rows)
            if not claim.more:
                ...  # wait for `await lane.next_due(cursor)` seconds, or for a wake-up

    """

    row_type: type[OutboxRow] = OutboxRow

    @abstractmethod
    async def claim(
        self, cursor: ClaimCursor, *, limit: int, lease_seconds: float, max_bytes: int = MAX_BYTES
    ) -> Claim:
        """Lease up to `limit` due rows that are free; rows whose lease ran out are left to `claim_suspect`.

        No row is added to rows that have `max_bytes` together, so that the claim ends in time, however large rows are.
        """

    @abstractmethod
    async def claim_suspect(self, cursor: ClaimCursor, *, lease_seconds: float) -> Claim:
        """Lease one row whose lease ran out, alone, because it may have killed the process that held it.

        It searches as far as the cursor's claims have come: claim first.
        """

    @abstractmethod
    async def claim_runs(
        self,
        cursor: KeyCursor,
        *,
        keys: int,
        rows_per_key: int,
        lease_seconds: float,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        suspects: bool = False,
    ) -> RunClaim:
        """Lease up to `keys` keys, each with its first rows as far as they are due; or keys whose lease ran out.

        The lease of a key is on its first row and covers the others. If that row was delivered before, it comes alone.
        `max_rows` and `max_bytes` bound all runs together: keys come while there is room, the oldest head first.
        The claim waits for no lock: a key that another claimer takes at this moment is counted as `lost`.
        """

    @abstractmethod
    async def queues_with_keys(self, queues: Sequence[str]) -> frozenset[str]:
        """Return those of the queues that have rows with a key, whatever their state."""

    @abstractmethod
    async def share_shards(
        self, holder: ShardHolder, queues: Sequence[str], *, count: int, lease_seconds: float
    ) -> list[Shard]:
        """Lease a fair share of each queue's shards; return the shards that the holder has now."""

    @abstractmethod
    async def leave_shards(self, holder: ShardHolder, queues: Sequence[str]) -> None:
        """Give up the holder's shards."""

    @abstractmethod
    async def renew(self, leases: Iterable[Lease], *, lease_seconds: float) -> frozenset[Lease]:
        """Renew leases and return them; a lease that is missing was lost, or another transaction has its row locked."""

    @abstractmethod
    async def release(self, rows: Iterable[OutboxRow], *, delay_seconds: float = 0.0) -> frozenset[Lease]:
        """Release rows that were not handled; the delivery is not counted, and a suspect stays one.

        With a delay they are due again so many seconds from now.
        """

    @abstractmethod
    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        """Write outcomes, one statement per kind; a row that makes its statement fail does not fail the others.

        Raises `SettleInterruptedError` if the store stops answering before the end.
        """

    @abstractmethod
    async def next_due(self, cursor: ClaimCursor) -> float | None:
        """Return in how many seconds the next free row is due: 0 if one is due already, None if there is none.

        Called after a claim that left nothing, it cannot miss a row that became due in between. A row that another
        process is claiming at this moment still counts as free: wait a little even for 0.
        """

    @abstractmethod
    async def stats(self) -> list[QueueStats]:
        """Count every queue's rows; reads the whole table."""

    @abstractmethod
    async def unserved(self, known: Collection[str]) -> dict[str, int]:
        """Count the due rows of queues that are not in `known` and of which no row is leased.

        A leased row says that another process reads its queue. The cost is bounded: it counts the first `MOST_COUNTED`
        rows of a queue with keys, and as many without, of `MOST_QUEUES` queues.
        """

    @abstractmethod
    async def ping(self) -> None:
        """Return if the store answers and takes writes, raise if it does not."""


class Listening(ABC):
    """Receives the notifications of all publishers, and can test whether it still does."""

    @abstractmethod
    async def notify(self, queues: Iterable[str]) -> None:
        """Notify all listeners, as the store does, but on the listening connection."""

    @abstractmethod
    async def unserved(self, known: Collection[str]) -> dict[str, int]:
        """Do what the method of a lane does, on the listening connection."""

    @abstractmethod
    async def wait_lost(self) -> None:
        """Return when the connection is known to be lost; one that dies silently is found by `test` only."""

    @abstractmethod
    async def test(self) -> None:
        """Send a notification the way publishers do, and return when it was received.

        It may wait without end: the caller sets the limit.
        """

    @abstractmethod
    def can_test(self) -> bool:
        """Return whether a failed test would mean anything: not if it needs a connection and none is free."""


class Store(ABC):
    """The rows, seen from a publisher (inside the caller's transaction) and from a consumer (`connect`)."""

    # Whether a dead row is kept as a dead letter; otherwise it is deleted.
    keeps_dead: bool
    # Whether processes can share the shards of a queue among themselves.
    keeps_shards: bool

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
        return await self._run(session, self.insert_sync, row, timer_conflict, notify=notify)

    def insert_sync(
        self,
        session: Session | Connection,
        row: NewRow,
        timer_conflict: TimerConflict = "ignore",
        *,
        notify: bool = False,
    ) -> int | None:
        """Insert one row through a synchronous session or connection."""
        _check_row(row)
        check_timer_conflict(timer_conflict)
        return self._insert(session, row, timer_conflict, notify=notify)

    async def insert_many(
        self, session: SessionOrConnection | None, rows: Iterable[NewRow], *, notify: bool = False
    ) -> list[int]:
        """Insert rows in one statement; the ids are in the order of the rows. Insert timers one by one."""
        return await self._run(session, self.insert_many_sync, list(rows), notify=notify)

    def insert_many_sync(
        self, session: Session | Connection, rows: Sequence[NewRow], *, notify: bool = False
    ) -> list[int]:
        """Insert rows through a synchronous session or connection."""
        check_batch(rows)
        return self._insert_many(session, rows, notify=notify) if rows else []

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[SessionOrConnection | None]:
        """Open a transaction of the store's own to insert in, committed at its end."""

    @abstractmethod
    def share_transaction(self, leases: Sequence[Lease]) -> SharedTransaction:
        """Begin a transaction for a handler to write in; it is committed if all its rows can be deleted in it."""

    @abstractmethod
    async def look(self) -> list[tuple[str, Exception]]:
        """Return the tables that cannot be read, or whose rows are hidden, each with the error."""

    async def cancel_timer(self, session: SessionOrConnection | None, *, queue: str, timer_id: str) -> bool:
        """Delete a timer that is not in flight; False if it is in flight or does not exist."""
        check_name("queue", queue)
        check_name("timer_id", timer_id)
        return await self._run(session, self._cancel_timer, queue, timer_id)

    async def read(
        self, session: SessionOrConnection | None, *, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxRow]:
        """Read rows in the order of their ids, without leasing them."""
        _check_selection(queue, limit)
        return await self._run(session, self._read, queue, limit)

    async def read_keys(
        self,
        session: SessionOrConnection | None,
        *,
        queue: str | None = None,
        state: KeyStateName | None = None,
        limit: int = 1000,
    ) -> list[KeyState]:
        """Describe keys that are blocked, or those in one state, by queue and key."""
        _check_selection(queue, limit)
        return await self._run(session, self._read_keys, queue, wanted_states(state), limit)

    async def act_on_key(
        self, session: SessionOrConnection | None, action: KeyAction, *, queue: str, key: str, notify: bool = False
    ) -> int | None:
        """Apply an action to the head of a key and return its id.

        None if there is no such key, if its head is in flight or is being claimed at this moment, or if the action is
        not for a head in its state. With `notify` the commit notifies listeners.
        """
        check_name("queue", queue)
        check_name("key", key)
        return await self._run(session, self._act_on_key, action, queue, key, notify=notify)

    @abstractmethod
    async def _run(
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
    def _read(self, session: Any, queue: str | None, limit: int) -> list[OutboxRow]: ...

    @abstractmethod
    def _read_keys(self, session: Any, queue: str | None, states: Sequence[str], limit: int) -> list[KeyState]: ...

    @abstractmethod
    def _act_on_key(self, session: Any, action: KeyAction, queue: str, key: str, *, notify: bool) -> int | None: ...

    @abstractmethod
    def connect(self) -> AbstractAsyncContextManager[StoreLane]:
        """Open a lane on a connection of the store's own."""

    @abstractmethod
    def after_commit(
        self, session: AnySession, callback: Callable[[], None], *, key: Hashable
    ) -> Callable[[], None] | None:
        """Arrange one call per key after the session's commit, and return it; None means: insert with `notify`."""

    @abstractmethod
    async def notify(self, queues: Iterable[str]) -> None:
        """Notify all listeners, in every process, that these queues have rows."""

    @abstractmethod
    def listen(self, on_queue: Callable[[str], None]) -> AbstractAsyncContextManager[Listening]:
        """Call `on_queue` for each notification; an empty name stands for any queue. `on_queue` must not raise."""

    @abstractmethod
    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Raise `RuntimeError` with everything that the live tables lack, and the DDL that mends it."""


def check_session(session: object) -> None:
    """Raise unless this is an asynchronous session or connection."""
    if isinstance(session, AsyncSession | AsyncConnection | async_scoped_session):
        return
    raise TypeError(
        f"session is the AsyncSession or AsyncConnection of your open transaction, not {type(session).__name__}. "
        "async with async_sessionmaker(engine)() as session, session.begin(): …"
    )


def _check_row(row: object) -> None:
    if not isinstance(row, NewRow):
        raise TypeError(f"row is a NewRow(queue, payload, …), not {type(row).__name__}.")


def check_batch(rows: Sequence[NewRow]) -> None:
    """Raise for a row that cannot be inserted together with others."""
    for row in rows:
        _check_row(row)
        if row.timer_id is not None:  # a batch could not say which timers existed already
            raise ValueError(f"A batch takes no timer_id ({row.timer_id!r}): publish timers one by one.")
    check_payloads(row.payload for row in rows)


def _check_selection(queue: str | None, limit: int) -> None:
    check_count("limit", limit)
    if queue is not None:
        check_name("queue", queue)


def check_timer_conflict(value: Any) -> None:
    """Raise unless this is a `TimerConflict`."""
    if value not in ("ignore", "extend"):
        raise ValueError(f'timer_conflict is "ignore" or "extend", not {value!r}.')
