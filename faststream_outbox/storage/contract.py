"""The contract of a store: everything that publishers, subscribers and operators do with rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from faststream_outbox.storage.checks import check_count, check_name
from faststream_outbox.storage.commits import AnySession
from faststream_outbox.storage.cursor import ClaimCursor
from faststream_outbox.storage.handler_transaction import SharedTransaction
from faststream_outbox.storage.listening import Listening
from faststream_outbox.storage.nodes import Nodes
from faststream_outbox.storage.operating.acts import StoreActs
from faststream_outbox.storage.operating.admin import StoreAdmin
from faststream_outbox.storage.operating.control import Control, ControlledStore
from faststream_outbox.storage.ordering.key_cursor import KeyCursor, KeyPosition, RunClaim
from faststream_outbox.storage.ordering.states import KeyAction, KeyState, KeyStateName, wanted_states
from faststream_outbox.storage.ordering.strategies import Shard, ShardHolder
from faststream_outbox.storage.outcomes import Settled, Settlement
from faststream_outbox.storage.publishing import PublishingStore, SessionOrConnection
from faststream_outbox.storage.queue_stats import QueueStats
from faststream_outbox.storage.rows import Lease, OutboxRow, Position
from faststream_outbox.storage.schema.missing_rights import MissingRightsError

# What one claim brings at most: so many bytes, and one row more; and so many rows of keys.
MAX_BYTES: Final = 8 * 2**20
MAX_ROWS: Final = 1_000
# How many free rows of a queue may lie before the rows of a lost claim: it took the first ones that were free.
MOST_FREE_BEFORE: Final = 10_000
# How many rows of a queue, and of how many queues, `unserved` counts.
MOST_COUNTED: Final = 1000
MOST_QUEUES: Final = 100

TableKind = Literal["outbox", "dlq", "shards", "control"]


@dataclass(frozen=True, slots=True)
class Claim:
    """The rows of one claim.

    `expires_at` is on this process's clock of leases, counted from before the claim was sent: after it another process
    may have claimed a row, whatever its clock shows. `more` says that another claim is likely to find rows.
    """

    rows: list[OutboxRow]
    expires_at: float
    more: bool


class ServerProcess(NamedTuple):
    """The server process of a connection: its id, and a time of the database at which it was there."""

    pid: int
    seen_at: float


@dataclass(frozen=True, slots=True)
class SentClaim:
    """A claim that was sent, whether its answer comes or not.

    Its rows are free rows after `starts`, or of the heads after `keys`, and have its token. `process` executes it; it
    is unknown behind a pooler.
    """

    token: UUID
    starts: tuple[tuple[str, Position], ...] = ()
    keys: tuple[str, KeyPosition] | None = None
    suspects: bool = False
    process: ServerProcess | None = None


class GivenBack(NamedTuple):
    """How many rows or runs of a lost claim were freed, and whether the server has ended that claim; None: unknown."""

    freed: int
    ended: bool | None


class UnreadableTable(NamedTuple):
    """A table that cannot be read, or whose rows are hidden: what it is, its name in a sentence, and the error."""

    kind: TableKind
    name: str
    error: Exception


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
    # The claim that was sent last: if its answer is lost, nobody else knows its token.
    sent: SentClaim | None = None

    @abstractmethod
    async def claim(
        self, cursor: ClaimCursor, *, limit: int, lease_seconds: float, max_bytes: int = MAX_BYTES
    ) -> Claim:
        """Lease due rows that are free; rows whose lease ran out are left to `claim_suspect`.

        Args:
            cursor: What the claimer remembers between its claims.
            limit: The largest number of rows.
            lease_seconds: After how many seconds others may claim them.
            max_bytes: No row is added to rows that have so many bytes together, so that the claim ends in time.

        """

    @abstractmethod
    async def claim_suspect(self, cursor: ClaimCursor, *, lease_seconds: float) -> Claim:
        """Lease one row whose lease ran out, alone, because it may have killed the process that held it.

        Args:
            cursor: The cursor of the claims; this searches as far as they have come, so claim first.
            lease_seconds: After how many seconds others may claim the row.

        """

    @abstractmethod
    async def recover(self, cursor: ClaimCursor, *, max_deliveries: int | None = None) -> int:
        """End the leases of dead nodes, and free rows whose lease is over; return how many rows were changed.

        A row is not freed, but left to `claim_suspect`, if its process did not settle it twice, or if the next delivery
        would be the last that `max_deliveries` allows. It searches as far as the cursor's claims have come.
        """

    @abstractmethod
    async def recover_runs(self, cursor: KeyCursor, *, rows_per_key: int, max_deliveries: int | None = None) -> int:
        """Do what `recover` does, for keys from where the cursor is; return how many keys were changed.

        The rows behind a head come alone from now on: one of them may have killed the process.
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
        """Renew leases and return them; a lease that is missing was lost, or another transaction has its row locked.

        Args:
            leases: The leases.
            lease_seconds: How long they hold from now.

        """

    @abstractmethod
    async def leave_running(self, leases: Iterable[Lease]) -> None:
        """Keep leases until their time is over, although the lock of this node ends: their handlers run on."""

    @abstractmethod
    async def release(self, rows: Iterable[OutboxRow], *, delay_seconds: float = 0.0) -> frozenset[Lease]:
        """Release rows that were not handled; the delivery is not counted, and a suspect stays one.

        Args:
            rows: The rows.
            delay_seconds: In how many seconds they are due again.

        """

    @abstractmethod
    async def give_back(self, sent: SentClaim) -> GivenBack:
        """Release all rows of a claim whose answer was lost, whatever they are; their delivery is not counted.

        The server may still execute that claim: while nothing was found and it has not ended, ask again. Of rows that
        became free before them meanwhile, it looks behind the first `MOST_FREE_BEFORE` only.
        """

    @abstractmethod
    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        """Write outcomes, one statement per kind; a row that makes its statement fail does not fail the others.

        Raises `SettleInterruptedError` if the store stops answering before the end.

        Args:
            settlements: The outcomes, each under its lease.

        """

    @abstractmethod
    async def next_due(self, cursor: ClaimCursor) -> float | None:
        """Return in how many seconds the next free row is due: 0 if one is due already, None if there is none.

        Called after a claim that left nothing, it cannot miss a row that became due in between. A row that another
        process is claiming at this moment still counts as free: wait a little even for 0.

        Args:
            cursor: The cursor of the claims.

        """

    @abstractmethod
    async def stats(self) -> list[QueueStats]:
        """Count every queue's rows, up to `STATS_CAP` of each sort: a larger table costs no more."""

    @abstractmethod
    async def unserved(self, known: Collection[str]) -> dict[str, int]:
        """Count the due rows of queues that are not in `known` and of which no row is leased: a lease shows a reader.

        It counts the first `MOST_COUNTED` rows of a queue with keys, and as many without, of `MOST_QUEUES` queues.
        """

    @abstractmethod
    async def ping(self) -> None:
        """Return if the store answers and takes writes, raise if it does not."""


class Store(ControlledStore, PublishingStore):
    """The rows, seen from a publisher (inside the caller's transaction) and from a consumer (`connect`)."""

    def __init__(self) -> None:
        self.nodes = Nodes()
        self.control = Control()

    # Whether a dead row is kept as a dead letter; otherwise it is deleted.
    keeps_dead: bool
    # Whether processes can share the shards of a queue among themselves.
    keeps_shards: bool
    admin: StoreAdmin  # what operators read
    acts: StoreActs  # what operators change

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[SessionOrConnection | None]:
        """Open a transaction of the store's own to insert in, committed at its end."""

    @abstractmethod
    def share_transaction(self, leases: Sequence[Lease]) -> SharedTransaction:
        """Begin a transaction for a handler to write in; it is committed if all its rows can be deleted in it."""

    @abstractmethod
    async def look(self) -> list[UnreadableTable]:
        """Return the tables that cannot be read, or whose rows are hidden, each with the error."""

    async def missing_rights(self, *, shards: bool) -> list[MissingRightsError]:
        """Return the rights that the role lacks to claim and settle, one error for each table; by default none.

        Args:
            shards: Whether it shares shards too.

        """
        del shards
        return []

    async def read(
        self, session: SessionOrConnection | None, *, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxRow]:
        """Read rows in the order of their ids, without leasing them."""
        _check_selection(queue, limit)
        return await self.run(session, self._read, queue, limit)

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
        return await self.run(session, self._read_keys, queue, wanted_states(state), limit)

    async def act_on_key(
        self,
        session: SessionOrConnection | None,
        action: KeyAction,
        *,
        queue: str,
        key: str,
        head: int | None = None,
        notify: bool = False,
    ) -> int | None:
        """Apply an action to the head of a key and return its id.

        None if there is no such key, if its head is in flight or is being claimed at this moment, if the action is
        not for a head in its state, or if `head` is given and another row is the head. With `notify` the commit
        notifies listeners.
        """
        check_name("queue", queue)
        check_name("key", key)
        if head is not None:
            check_count("head", head)
        return await self.run(session, self._act_on_key, action, queue, key, head, notify=notify)

    @abstractmethod
    def _read(self, session: Any, queue: str | None, limit: int) -> list[OutboxRow]: ...

    def _read_keys(self, session: Any, queue: str | None, states: Sequence[str], limit: int) -> list[KeyState]:
        """Read page after page, because one statement visits a bounded number of keys."""
        page = self.admin.search_keys(session, queue, states, None, limit)
        found = page.items
        while page.position is not None and len(found) < limit:
            page = self.admin.search_keys(session, queue, states, page.position, limit - len(found))
            found.extend(page.items)
        return found

    @abstractmethod
    def _act_on_key(
        self, session: Any, action: KeyAction, queue: str, key: str, head: int | None, *, notify: bool
    ) -> int | None: ...

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


def _check_selection(queue: str | None, limit: int) -> None:
    check_count("limit", limit)
    if queue is not None:
        check_name("queue", queue)
