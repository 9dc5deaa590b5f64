"""Asks storage for rows, and waits when there are none."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from faststream_outbox.storage import Claim, ClaimCursor, StoreConnection
from faststream_outbox.subscriber.journal import Journal
from faststream_outbox.subscriber.ledger import Ledger
from faststream_outbox.subscriber.link import Link
from faststream_outbox.subscriber.loop import Loop

# Suspects run alone, so nothing else runs meanwhile: they get at most half of the time, in slices of this length.
_SUSPECT_SLICE: Final = 0.5
# A row that somebody is claiming just now looks free. A short wait, lest two claimers chase each other.
_SHORTEST_WAIT: Final = 0.005


class Claimer(Loop):
    """Keeps the ledger filled while handlers run, one claim at a time."""

    failure_event = "claim_failed"

    def __init__(
        self,
        link: Link,
        ledger: Ledger,
        journal: Journal,
        *,
        queues: Sequence[str],
        batch_size: int,
        capacity: int,
        lease_seconds: float,
        min_interval: float,
        max_interval: float,
    ) -> None:
        super().__init__(journal.monitor)
        self._link = link
        self._ledger = ledger
        self._journal = journal
        self._cursor = ClaimCursor(queues)
        self._batch_size = batch_size
        self._capacity = capacity
        self._lease_seconds = lease_seconds
        self._min_interval = min_interval
        self._max_interval = max_interval
        self._interval = min_interval
        self._wakeup = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._suspects_at = 0.0
        self.claimed_at = 0.0  # when a claim last succeeded, on the monotonic clock

    def wake(self) -> None:
        """Say that rows may have come."""
        self._wakeup.set()

    def expect(self, seconds: float) -> None:
        """Say that a row will be due then, which the database did not know when it was asked what is next.

        The earliest will do: whoever wakes then asks the database for the rest.
        """
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._alarm is not None:
            if self._alarm.when() <= at:
                return
            self._alarm.cancel()
        self._alarm = loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.wake()

    async def stop(self) -> None:
        """Stop at once; what a claim under way brings is still taken."""
        if self._alarm is not None:
            self._alarm.cancel()
        await super().stop()

    async def step(self) -> None:
        """Claim what there is room for; when nothing is left, wait for more."""
        # Half of the room at least, so that a claim is a batch and not a row.
        await self._ledger.wait_until_at_most(self._capacity // 2)
        if time.monotonic() >= self._suspects_at:
            await self._run_suspects()
        self._wakeup.clear()
        room = min(self._batch_size, self._capacity - len(self._ledger))
        claim = await self._to_its_end(
            lambda lane: lane.claim(self._cursor, limit=room, lease_seconds=self._lease_seconds), self._take
        )
        self.claimed_at = time.monotonic()
        if claim.rows:
            self._interval = self._min_interval
        if not claim.more:
            await self._idle()

    async def _idle(self) -> None:
        due = await self._link.run(lambda lane: lane.next_due(self._cursor))
        # Longer each time, and never in step with others.
        wait = self._interval * (0.75 + random.random() / 4)  # noqa: S311 - to spread, not to hide
        self._interval = min(self._interval * 2, self._max_interval)
        if due is not None:
            wait = min(wait, max(due, _SHORTEST_WAIT))
        with suppress(TimeoutError):
            # Not wait_for, which forgets that it was cancelled when what it waits for happens at that moment.
            async with asyncio.timeout(wait):
                await self._wakeup.wait()
            self._interval = self._min_interval

    async def _run_suspects(self) -> None:
        """Claim rows whose lease ran out, one by one, and let each run with nothing beside it."""
        began = time.monotonic()
        while time.monotonic() - began < _SUSPECT_SLICE:
            claim = await self._to_its_end(
                lambda lane: lane.claim_suspect(self._cursor, lease_seconds=self._lease_seconds),
                self._keep_aside,
            )
            if not claim.rows:
                break
            await self._ledger.wait_until_at_most(len(claim.rows))
            self._ledger.admit_all()
            await self._ledger.wait_until_at_most(0)
        took = time.monotonic() - began
        self._suspects_at = time.monotonic() + max(took, min(self._max_interval, self._lease_seconds / 10))

    async def _to_its_end(
        self, operation: Callable[[StoreConnection], Awaitable[Claim]], take: Callable[[Claim], None]
    ) -> Claim:
        """Claim, and take what was claimed even if we are stopped meanwhile: nobody else knows of those rows."""
        claiming = asyncio.ensure_future(self._link.run(operation))
        try:
            claim = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            if not claiming.cancelled():
                take(await claiming)
            raise
        take(claim)
        return claim

    def _take(self, claim: Claim) -> None:
        self._journal.claimed(self._cursor.queues, claim.rows)
        self._ledger.add(claim.rows, claim.expires_at)
        self._ledger.admit_all()

    def _keep_aside(self, claim: Claim) -> None:
        if claim.rows:  # that there are no suspects is no news
            self._journal.claimed(self._cursor.queues, claim.rows)
        self._ledger.add(claim.rows, claim.expires_at)
