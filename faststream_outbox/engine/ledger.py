"""The rows that a subscriber holds: claimed, and not yet settled."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain

from faststream_outbox.storage import Lease, OutboxRow
from faststream_outbox.storage.ordering import Run


class Ledger:
    """Where the parts of a subscriber meet: the claimer adds, a worker takes, the settler strikes out."""

    def __init__(self) -> None:
        self._held: dict[Lease, OutboxRow] = {}
        self._aside: list[OutboxRow] = []
        self._waiting: deque[OutboxRow] = deque()
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        # Rows that are covered by the lease of another one.
        self._followers = 0
        # Rows whose handler has ended, and whose outcome is still to be written.
        self._finished = 0
        # Places that a running call has left empty: nobody can fill them before it ends.
        self._empty_places = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def occupied(self) -> int:
        """How many rows wait for a handler or are in one, and how many more would if every running call were full."""
        return len(self._held) + self._followers + self._empty_places - self._finished

    @property
    def finished(self) -> int:
        """How many rows are in hand for no more than their outcome to be written."""
        return self._finished

    def finish(self, rows: Sequence[OutboxRow]) -> None:
        """Take note that a handler has ended."""
        ended_at = time.monotonic()
        for held in rows:
            held.ended_at = ended_at
        self._finished += len(rows)
        self._changed.set()

    def take_places(self, count: int) -> None:
        """Take note that a call begins with so many places empty."""
        self._empty_places += count

    def free_places(self, count: int) -> None:
        """Take note that it has ended."""
        if count:  # or nothing has changed, and nobody need look
            self._empty_places -= count
            self._changed.set()

    def add(self, rows: Iterable[OutboxRow], expires_at: float) -> None:
        """Take note of claimed rows; they are kept, and renewed, but nobody starts them before they are admitted."""
        for row in rows:
            row.held_until = expires_at
            self._held[row.lease] = row
            self._aside.append(row)

    def add_runs(self, runs: Iterable[Run], expires_at: float) -> None:
        """Take note of claimed runs, as of single rows."""
        for run in runs:
            head, *followers = run.rows
            for row in run.rows:
                row.held_until = expires_at
            head.followers = followers
            self._followers += len(followers)
            self._held[head.lease] = head
            self._aside.append(head)

    def cut(self, head: OutboxRow, count: int) -> None:
        """Let go of the rows of a run behind the first `count`: nothing was written of them."""
        self._followers -= len(head.followers) - (count - 1)
        head.followers = head.followers[: count - 1]

    def admit_all(self) -> None:
        """Let workers take the rows that were added."""
        self._waiting.extend(self._aside)
        self._aside.clear()
        if self._waiting:
            self._arrived.set()

    async def take(self) -> OutboxRow:
        """Wait for a row that nobody has taken, and take it."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    @property
    def waiting(self) -> int:
        """How many rows wait for a worker."""
        return len(self._waiting)

    @property
    def first_waiting(self) -> OutboxRow | None:
        """The row whose turn it is."""
        return self._waiting[0] if self._waiting else None

    def waiting_rows(self) -> Iterable[OutboxRow]:
        """Tell the rows that wait for a worker, in their order."""
        return iter(self._waiting)

    def take_waiting(self, count: int) -> list[OutboxRow]:
        """Take rows, those first that have waited for longest."""
        return [self._waiting.popleft() for _ in range(count)]

    async def wait_for_arrivals(self, seconds: float | None) -> None:
        """Wait until more rows wait for a worker, or so long."""
        self._arrived.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()

    def stir(self) -> None:
        """Let whoever waits for rows look again."""
        self._arrived.set()

    def strike(self, leases: Iterable[Lease]) -> list[OutboxRow]:
        """Forget rows that were settled or lost; returns those that were here."""
        struck = [held for lease in leases if (held := self._held.pop(lease, None)) is not None]
        if struck:
            followers = [follower for held in struck for follower in held.followers]
            self._followers -= len(followers)
            self._finished -= sum(held.ended_at is not None for held in chain(struck, followers))
            self._changed.set()
        return struck

    def leases(self) -> list[Lease]:
        """Tell all leases in hand."""
        return list(self._held)

    def extend(self, leases: Iterable[Lease], expires_at: float) -> None:
        """Take note that leases were renewed."""
        for lease in leases:
            if (held := self._held.get(lease)) is not None:
                held.held_until = expires_at

    def find(self, lease: Lease) -> OutboxRow | None:
        """Look a row up by its lease."""
        return self._held.get(lease)

    def all(self) -> list[OutboxRow]:
        """Tell all rows in hand."""
        return list(self._held.values())

    def take_aside(self) -> list[OutboxRow]:
        """Remove and return the rows that were not admitted."""
        aside, self._aside = self._aside, []
        return self.strike(held.lease for held in aside)

    def take_unstarted(self) -> list[OutboxRow]:
        """Remove and return the rows that no worker has started."""
        waiting, self._waiting = self._waiting, deque()
        return [*self.take_aside(), *self.strike(held.lease for held in waiting)]

    def take_waiting_since(self, claimed_at: float) -> list[OutboxRow]:
        """Remove and return the rows that were claimed before then and that no worker has taken."""
        stale = [held for held in self._waiting if held.claimed_at < claimed_at]
        self._waiting = deque(held for held in self._waiting if held.claimed_at >= claimed_at)
        return self.strike(held.lease for held in stale)

    async def wait_until_at_most(self, count: int) -> None:
        """Wait until no more than this many rows are in hand."""
        while len(self._held) > count:
            self._changed.clear()
            await self._changed.wait()

    async def wait_for_change(self) -> None:
        """Wait until rows have left, or places have become free."""
        self._changed.clear()
        await self._changed.wait()

    async def wait_until_gone(self, lease: Lease) -> None:
        """Wait until a row is no longer in hand."""
        while lease in self._held:
            self._changed.clear()
            await self._changed.wait()
