"""The contract of a store: what can be done with rows, whatever holds them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from faststream_outbox.storage.commits import AnySession
from faststream_outbox.storage.cursor import ClaimCursor
from faststream_outbox.storage.handler_transaction import SharedTransaction
from faststream_outbox.storage.ordering.actions import KeyAction
from faststream_outbox.storage.ordering.key_cursor import KeyCursor
from faststream_outbox.storage.ordering.runs import RunClaim
from faststream_outbox.storage.ordering.shards import Shard, ShardHolder
from faststream_outbox.storage.ordering.states import KeyState, KeyStateName
from faststream_outbox.storage.outcomes import Settled, Settlement
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow

TimerConflict = Literal["ignore", "extend"]

# What a caller publishes through; a store that knows no transactions takes None.
SessionOrConnection = AsyncSession | AsyncConnection | async_scoped_session[AsyncSession]


@dataclass(frozen=True, slots=True)
class Claim:
    """What one claim brought.

    `expires_at` is on this process's monotonic clock, counted from before the claim was sent: past it a row may be
    somebody else's, whatever the clocks of others say. `more` tells that another claim is likely to bring rows.
    """

    rows: list[OutboxRow]
    expires_at: float
    more: bool


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue as an operator sees it. Ages are seconds by the database's clock, None where there is no such row.

    `ready` can be claimed: of a key only when its head, the first row, can. Rows behind a head that cannot are
    `blocked`, also while it is being handled, and so is a head that is parked. Behind a head that is ready each row
    counts by itself, although one that is not due yet will stop those after it. `blocked_keys` are the keys that
    `fetch_keys` tells of: retrying, delayed, parked, expired; `parked_keys` those of them that wait for an operator.
    `oldest_due_age` is for how long the oldest row has been due that is ready or in somebody's hands.
    """

    queue: str
    ready: int
    scheduled: int
    in_flight: int
    expired: int
    blocked: int
    dead: int
    blocked_keys: int
    parked_keys: int
    oldest_ready_age: float | None
    oldest_age: float | None
    oldest_due_age: float | None

    @property
    def total(self) -> int:
        """All rows of the queue that are still to be settled."""
        return self.ready + self.scheduled + self.in_flight + self.expired + self.blocked


class StoreConnection(ABC):
    """One lane to the store, for one loop; its operations commit by themselves, nearly all in one statement.

    Whoever needs more of a row than a row says so by `row_type`: claimed rows may come as that, and need no copying.

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
    async def claim(self, cursor: ClaimCursor, *, limit: int, lease_seconds: float) -> Claim:
        """Lease up to `limit` due rows that are free; those whose lease ran out are left to `claim_suspect`."""

    @abstractmethod
    async def claim_suspect(self, cursor: ClaimCursor, *, lease_seconds: float) -> Claim:
        """Lease one row whose lease ran out, alone, because it may have ended the process that held it.

        It looks as far as the cursor's claims have come, so claim first.
        """

    @abstractmethod
    async def claim_runs(
        self, cursor: KeyCursor, *, keys: int, rows_per_key: int, lease_seconds: float, suspects: bool = False
    ) -> RunClaim:
        """Lease up to `keys` keys, each with its first rows as far as they are due; or keys whose lease ran out.

        A key is leased by its first row, whose lease covers the others. Of a key that was delivered before, that row
        comes alone.
        """

    @abstractmethod
    async def share_shards(
        self, holder: ShardHolder, queues: Sequence[str], *, count: int, lease_seconds: float
    ) -> list[Shard]:
        """Hold a fair share of each queue's shards for so many seconds; returns those that are the holder's now."""

    @abstractmethod
    async def leave_shards(self, holder: ShardHolder, queues: Sequence[str]) -> None:
        """Leave the holder's shards to others."""

    @abstractmethod
    async def renew(self, leases: Iterable[Lease], *, lease_seconds: float) -> frozenset[Lease]:
        """Lengthen leases; what does not come back has been lost, or is locked by somebody at this moment."""

    @abstractmethod
    async def release(self, rows: Iterable[OutboxRow]) -> frozenset[Lease]:
        """Give back rows that were not started, their delivery uncounted; a suspect stays one."""

    @abstractmethod
    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        """Write outcomes, one statement per kind; a row that makes its statement fail is set apart, not the batch.

        `SettleInterruptedError` when the store stopped answering on the way.
        """

    @abstractmethod
    async def next_due(self, cursor: ClaimCursor) -> float | None:
        """Tell in how many seconds from now the next free row is due; 0 when one was due already, None without any.

        Asked after a claim that left nothing, it cannot miss a row that became due in between. A row that somebody is
        claiming at this moment still counts as free, so wait a little even for 0.
        """

    @abstractmethod
    async def stats(self) -> list[QueueStats]:
        """Count every queue's rows; reads the whole table."""

    @abstractmethod
    async def ping(self) -> None:
        """Return if the store answers, raise if it does not."""


class Listening(ABC):
    """An open ear for the notifications of all publishers, and the means to learn that it has gone deaf."""

    @abstractmethod
    async def notify(self, queues: Iterable[str]) -> None:
        """Tell everybody who listens, as the store does, and need no other connection for it."""

    @abstractmethod
    async def wait_lost(self) -> None:
        """Return when it is known to hear nothing any more, which a connection that dies silently never tells."""

    @abstractmethod
    async def test(self) -> None:
        """Return when a notification of our own has been heard, sent so that it would not be if others' were not.

        It may wait for ever: whoever awaits sets the limit.
        """

    @abstractmethod
    def can_test(self) -> bool:
        """Tell whether it means anything when a test is not heard: not if it needs a connection and none is free."""


class Store(ABC):
    """The rows, seen from a publisher (inside the caller's transaction) and from a consumer (`connect`)."""

    @property
    @abstractmethod
    def keeps_dead(self) -> bool:
        """Whether a dead row is kept as a dead letter; else it is deleted."""

    @property
    @abstractmethod
    def keeps_shards(self) -> bool:
        """Whether processes can share the shards of a queue among themselves."""

    @abstractmethod
    async def insert(
        self,
        session: SessionOrConnection | None,
        row: NewRow,
        *,
        timer_conflict: TimerConflict = "ignore",
        notify: bool = False,
    ) -> int | None:
        """Insert one row; None when its timer is there already, which `extend` moves to the later deadline if free.

        With `notify` its commit tells whoever listens, at a price: such commits wait for each other.
        """

    @abstractmethod
    async def insert_many(
        self, session: SessionOrConnection | None, rows: Iterable[NewRow], *, notify: bool = False
    ) -> list[int]:
        """Insert rows in one statement; the ids come in the order of the rows. Timers go one by one."""

    @abstractmethod
    def insert_sync(
        self,
        session: Session | Connection,
        row: NewRow,
        timer_conflict: TimerConflict = "ignore",
        *,
        notify: bool = False,
    ) -> int | None:
        """Insert one row through a synchronous session or connection."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[SessionOrConnection | None]:
        """Open a transaction of the store's own to insert in, committed at its end."""

    @abstractmethod
    def share_transaction(self, leases: Sequence[Lease]) -> SharedTransaction:
        """Begin a transaction for a handler to write in, which is committed if all its rows can be deleted in it."""

    @abstractmethod
    async def look(self) -> list[tuple[str, Exception]]:
        """Tell which tables cannot be read, and why."""

    @abstractmethod
    async def cancel_timer(self, session: SessionOrConnection | None, *, queue: str, timer_id: str) -> bool:
        """Delete a timer that is not in flight; False when it is, or is not there."""

    @abstractmethod
    async def read(
        self, session: SessionOrConnection | None, *, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxRow]:
        """Read rows in the order of their ids, without leasing them."""

    @abstractmethod
    async def read_keys(
        self,
        session: SessionOrConnection | None,
        *,
        queue: str | None = None,
        state: KeyStateName | None = None,
        limit: int = 1000,
    ) -> list[KeyState]:
        """Describe keys that are blocked, or those in one state, by queue and key."""

    @abstractmethod
    async def act_on_key(
        self, session: SessionOrConnection | None, action: KeyAction, *, queue: str, key: str, notify: bool = False
    ) -> int | None:
        """Do something with the head of a key; returns its id.

        None when there is no such key, when its head is being handled or somebody is just taking it, or when the action
        is not for a head in its state. With `notify` the commit tells whoever listens.
        """

    @abstractmethod
    def connect(self) -> AbstractAsyncContextManager[StoreConnection]:
        """Open a lane of the store's own."""

    @abstractmethod
    def after_commit(
        self, session: AnySession, callback: Callable[[], None], *, key: Hashable
    ) -> Callable[[], None] | None:
        """Arrange for one call per key after the session's commit, and return it; None: insert with `notify`."""

    @abstractmethod
    async def notify(self, queues: Iterable[str]) -> None:
        """Tell everybody who listens, in every process, that these queues have rows."""

    @abstractmethod
    def listen(self, on_queue: Callable[[str], None]) -> AbstractAsyncContextManager[Listening]:
        """Hear of rows as they come, by their queue; an empty name stands for any queue. `on_queue` must not raise."""

    @abstractmethod
    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Raise `RuntimeError` with everything that the live tables lack, and the DDL that mends it."""


def check_session(session: object) -> None:
    """Refuse what is no asynchronous session or connection."""
    if isinstance(session, AsyncSession | AsyncConnection | async_scoped_session):
        return
    raise TypeError(
        f"session is the AsyncSession or AsyncConnection of your open transaction, not {type(session).__name__}. "
        "async with async_sessionmaker(engine)() as session, session.begin(): …"
    )


def check_row(row: object) -> None:
    """Refuse what is no row."""
    if not isinstance(row, NewRow):
        raise TypeError(f"row is a NewRow(queue, payload, …), not {type(row).__name__}.")


def check_batch(rows: Sequence[NewRow]) -> None:
    """Refuse what is no row, and what a batch cannot promise: which of its timers were already waiting."""
    for row in rows:
        check_row(row)
        if row.timer_id is not None:
            raise ValueError(f"A batch takes no timer_id ({row.timer_id!r}): publish timers one by one.")


def check_timer_conflict(value: Any) -> None:
    """Refuse a word that is not a `TimerConflict`."""
    if value not in ("ignore", "extend"):
        raise ValueError(f'timer_conflict is "ignore" or "extend", not {value!r}.')
