"""The rows in hand: claimed by this subscriber and not yet settled."""

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import chain

from faststream_outbox.storage import Lease, OutboxRow
from faststream_outbox.storage.ordering import Run


class Ledger:
    """Holds the rows in hand: the claimer adds rows, workers or callers take them, the settler removes them.

    A row is *added* when it was claimed, *waiting* when it was admitted, and then taken. Its lease is renewed from the
    first moment on.
    """

    def __init__(self) -> None:
        self._held: dict[Lease, OutboxRow] = {}
        self._added: list[OutboxRow] = []
        self._waiting: deque[OutboxRow] = deque()
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        # Rows that are covered by the lease of another one.
        self._followers = 0
        # How many rows are in hand only until their outcome is written, because their handler has ended.
        self.finished = 0
        # Places in running calls that no row can take before the call ends.
        self._empty_places = 0
        # How many bytes the rows in hand have, and how many their answers, which are in memory until they are written.
        self.bytes = 0
        self.output_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def occupied(self) -> int:
        """How many rows wait for a handler or are in one; the empty places of running calls count too."""
        return len(self._held) + self._followers + self._empty_places - self.finished

    def finish(self, rows: Sequence[OutboxRow]) -> None:
        """Note that the handler of these rows has ended; of those that ended before, nothing changes."""
        ended_at = time.monotonic()
        for held in rows:
            if held.ended_at is None:
                held.ended_at = ended_at
                self.finished += 1
        self._changed.set()

    def add_outputs(self, row: OutboxRow, size: int) -> None:
        """Note that the handler of a row gave answers of so many bytes."""
        row.output_bytes += size
        self.output_bytes += size

    def _subtract(self, rows: Sequence[OutboxRow]) -> None:
        self.bytes -= _bytes_of(rows)
        if self.output_bytes:
            self.output_bytes -= sum([row.output_bytes for row in rows])

    def reserve_places(self, count: int) -> None:
        """Note that a call begins with so many places empty."""
        self._empty_places += count

    def free_places(self, count: int) -> None:
        """Note that a call has ended that began with so many places empty."""
        if count:
            self._empty_places -= count
            self._changed.set()

    def add(self, rows: Iterable[OutboxRow], expires_at: float) -> None:
        """Add claimed rows; none is handled before `admit_added`."""
        for row in rows:
            row.held_until = expires_at
            self._held[row.lease] = row
            self._added.append(row)
            self.bytes += row.size

    def add_runs(self, runs: Iterable[Run], expires_at: float) -> None:
        """Add claimed runs; none is handled before `admit_added`."""
        for run in runs:
            head, *followers = run.rows
            for row in run.rows:
                row.held_until = expires_at
                self.bytes += row.size
            head.followers = followers
            self._followers += len(followers)
            self._held[head.lease] = head
            self._added.append(head)

    def cut_run(self, head: OutboxRow, count: int) -> None:
        """Drop the rows of a run behind the first `count`; the store need not know, because only the head is leased."""
        self._followers -= len(head.followers) - (count - 1)
        self.bytes -= _bytes_of(head.followers[count - 1 :])
        head.followers = head.followers[: count - 1]

    def pass_lease(self, head: OutboxRow, count: int) -> OutboxRow:
        """Remove the first `count` rows of a run, which are settled; the row behind them now holds the lease."""
        parts = head.parts
        settled, next_head = parts[:count], parts[count]
        del self._held[head.lease]
        next_head.followers, next_head.held_until = parts[count + 1 :], head.held_until
        head.followers = parts[1:count]
        self._held[next_head.lease] = next_head
        self._followers -= count
        self._subtract(settled)
        self.finished -= count
        self._changed.set()
        return next_head

    @property
    def has_added(self) -> bool:
        """Whether rows were added that are not admitted yet: a suspect, as other rows are admitted at once."""
        return bool(self._added)

    def admit_added(self) -> None:
        """Make the rows that were added available to workers or callers."""
        self._waiting.extend(self._added)
        self._added.clear()
        if self._waiting:
            self._arrived.set()

    async def take(self) -> OutboxRow:
        """Wait for a row and take it."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    @property
    def waiting(self) -> int:
        """How many rows wait to be taken."""
        return len(self._waiting)

    @property
    def first_waiting(self) -> OutboxRow | None:
        """The row that is taken next."""
        return self._waiting[0] if self._waiting else None

    def waiting_rows(self) -> Iterable[OutboxRow]:
        """Return the rows that wait to be taken, in their order."""
        return iter(self._waiting)

    def take_waiting(self, count: int) -> list[OutboxRow]:
        """Take rows, those first that have waited longest."""
        return [self._waiting.popleft() for _ in range(count)]

    async def wait_for_arrivals(self, seconds: float | None) -> None:
        """Wait until rows are admitted or `wake_takers` is called, so many seconds at most."""
        self._arrived.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()

    def wake_takers(self) -> None:
        """End all waits for arrivals."""
        self._arrived.set()

    def remove(self, leases: Iterable[Lease]) -> list[OutboxRow]:
        """Remove rows that were settled, lost or given back; return those that were here."""
        removed = [held for lease in leases if (held := self._held.pop(lease, None)) is not None]
        if removed:
            followers = [follower for held in removed for follower in held.followers]
            self._followers -= len(followers)
            self._subtract(removed)
            self._subtract(followers)
            self.finished -= sum(held.ended_at is not None for held in chain(removed, followers))
            self._changed.set()
        return removed

    def leases(self) -> list[Lease]:
        """Return all leases in hand."""
        return list(self._held)

    def extend(self, leases: Iterable[Lease], expires_at: float) -> None:
        """Note that leases were renewed until `expires_at`."""
        for lease in leases:
            if (held := self._held.get(lease)) is not None:
                held.held_until = expires_at

    def find(self, lease: Lease) -> OutboxRow | None:
        """Return the row under this lease; None when it is not in hand."""
        return self._held.get(lease)

    def surely_holds(self, lease: Lease) -> bool:
        """Return whether the row under this lease is in hand and the lease has not run out."""
        held = self._held.get(lease)
        return held is not None and held.surely_ours

    def all(self) -> list[OutboxRow]:
        """Return all rows in hand."""
        return list(self._held.values())

    def take_added(self) -> list[OutboxRow]:
        """Remove and return the rows that were added and not admitted."""
        added, self._added = self._added, []
        return self.remove(held.lease for held in added)

    def take_unstarted(self) -> list[OutboxRow]:
        """Remove and return the rows that were not taken."""
        waiting, self._waiting = self._waiting, deque()
        return [*self.take_added(), *self.remove(held.lease for held in waiting)]

    def take_of(self, queues: Collection[str]) -> list[OutboxRow]:
        """Remove and return the rows of these queues that were not taken."""
        given = [held for held in chain(self._added, self._waiting) if held.queue in queues]
        if given:
            self._added = [held for held in self._added if held.queue not in queues]
            self._waiting = deque(held for held in self._waiting if held.queue not in queues)
        return self.remove(held.lease for held in given)

    def take_claimed_before(self, claimed_at: float) -> list[OutboxRow]:
        """Remove and return the rows that were claimed before then and not taken."""
        stale = [held for held in self._waiting if held.claimed_at < claimed_at]
        self._waiting = deque(held for held in self._waiting if held.claimed_at >= claimed_at)
        return self.remove(held.lease for held in stale)

    async def wait_until_at_most(self, count: int) -> None:
        """Wait until no more than this many rows are in hand."""
        while len(self._held) > count:
            await self.wait_for_change()

    async def wait_until_gone(self, lease: Lease) -> None:
        """Wait until a row is no longer in hand."""
        while lease in self._held:
            await self.wait_for_change()

    async def wait_for_change(self) -> None:
        """Wait until rows were removed or finished, places were freed, or `note_change` was called."""
        self._changed.clear()
        await self._changed.wait()

    def note_change(self) -> None:
        """End all waits for a change: more rows are wanted."""
        self._changed.set()


def _bytes_of(rows: Iterable[OutboxRow]) -> int:
    return sum([row.size for row in rows])
