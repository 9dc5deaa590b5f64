"""Asks storage for rows, and waits when there are none."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from faststream_outbox.engine.claim.idle_wait import IdleWait
from faststream_outbox.engine.claim.key_claims import LOOK_EVERY, KeyClaims
from faststream_outbox.engine.claim.prefetch import Prefetch
from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.engine.shutdown import give_back
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import RowEvents
from faststream_outbox.storage import Claim, ClaimCursor, StoreConnection
from faststream_outbox.storage.ordering import RunClaim

_T = TypeVar("_T")

# Suspects run alone, so nothing else runs meanwhile: they get at most half of the time, in slices of this length.
_SUSPECT_SLICE: Final = 0.5
# How long they may wait to be alone, if it has to be: longer each time, because a slow handler may always be running.
_LONGEST_PATIENCE: Final = 60.0


class Claimer(Loop):
    """Keeps the ledger filled while handlers run, one claim at a time."""

    failure_event = "claim_failed"
    task = "Claiming rows"

    def __init__(
        self,
        link: ReconnectingLane,
        ledger: Ledger,
        journal: RowEvents,
        prefetch: Prefetch,
        keys: KeyClaims,
        *,
        queues: Sequence[str],
        options: SubscriberOptions,
    ) -> None:
        super().__init__(journal.monitor)
        self._link = link
        self._ledger = ledger
        self._journal = journal
        self._prefetch = prefetch
        self._cursor = ClaimCursor(queues)
        self._keys = keys
        self._rows_per_claim = options.rows_per_claim
        self._lease_seconds = options.lease_ttl_seconds
        self._max_interval = options.max_fetch_interval
        self._idle_wait = IdleWait(min_interval=options.min_fetch_interval, max_interval=options.max_fetch_interval)
        self._suspects_at = 0.0
        self._suspects_left = True  # for all we know
        self._suspect_patience = _SUSPECT_SLICE
        self._claimed_at = -math.inf
        self._waits_for_handlers = False
        # Whether rows without a key took all of the room when keys were to be looked for.
        self._keys_left_out = False
        # When to look for rows without a key again, while there are keys to claim.
        self._keyless_at = -math.inf
        self._resumed_at = -math.inf
        self._open = asyncio.Event()
        self._open.set()

    def pause(self) -> None:
        """Claim nothing until told to go on."""
        self._open.clear()

    def resume(self) -> None:
        """Go on."""
        self._resumed_at = time.monotonic()
        self._open.set()

    def wake(self) -> None:
        """Say that rows may have come."""
        self._idle_wait.wake()

    def expect(self, seconds: float) -> None:
        """Say that a row will be due then: it was written after the database was asked what is next."""
        self._idle_wait.expect(seconds)

    async def stop(self) -> None:
        """Stop at once; what a claim under way brings is still taken."""
        self._idle_wait.close()
        await super().stop()

    @property
    def idle_for(self) -> float:
        """For how many seconds no claim has succeeded, although there was room for rows and nobody had paused it."""
        excused = self._waits_for_handlers or not self._open.is_set()
        return 0.0 if excused else time.monotonic() - max(self._claimed_at, self._resumed_at)

    async def step(self) -> None:
        """Claim what there is room for; when nothing is left, wait for more."""
        await self._wait_for_room()
        await self._wait_until_open()
        # Suspects are looked for as far as claims have come, so the first claim comes first.
        if self._claimed_at > -math.inf and time.monotonic() >= self._suspects_at:
            await self._run_suspects()
        self._idle_wait.forget_calls()
        room = max(1, min(self._rows_per_claim, self._prefetch.capacity - self._ledger.occupied))
        if self._keys.more and time.monotonic() < self._keyless_at:
            await self._claim_keys_alone(room)
            return
        ordered = await self._claim_left_out(room)
        if ordered >= room:
            self._claimed_at = time.monotonic()
            self._idle_wait.shorten()
            return
        claim = await self._to_its_end(
            lambda lane: lane.claim(self._cursor, limit=room - ordered, lease_seconds=self._lease_seconds),
            self._take,
        )
        self._claimed_at = time.monotonic()
        self._succeed()  # now, not when the wait for more is over
        ordered = ordered or await self._claim_runs(room - len(claim.rows), idle=not claim.more)
        self._keyless_at = -math.inf if claim.rows else self._claimed_at + LOOK_EVERY
        if claim.rows or ordered:
            self._idle_wait.shorten()
        elif self._suspects_left:
            self._suspects_at = 0.0  # there is nothing else to run, so they need not share the time
            return
        if not claim.more and not self._keys.more:
            await self._rest()

    async def _rest(self) -> None:
        if self._idle_wait.called:
            self._idle_wait.shorten()  # rows have come meanwhile, and would wait for an answer that nobody needs
        else:
            due = await self._link.run(lambda lane: lane.next_due(self._cursor))
            await self._idle_wait.wait(self._keys.sooner(due), at_most=self._patience())
        self._keys.restart()
        self._keyless_at = -math.inf

    async def _claim_keys_alone(self, room: int) -> None:
        """Claim rows with a key, and do not ask for others: there were none a moment ago."""
        if await self._claim_runs(room, idle=True):
            self._idle_wait.shorten()
        self._claimed_at = time.monotonic()
        self._succeed()

    async def _claim_left_out(self, room: int) -> int:
        """Claim rows with a key first, for half of the room, if those without one took all of it before."""
        return await self._claim_runs((room + 1) // 2, idle=False) if self._keys_left_out else 0

    async def _claim_runs(self, room: int, *, idle: bool) -> int:
        """Claim rows with a key, for which there may be no room left; returns how many came."""
        if not (idle or self._keys.are_due):
            return 0
        self._keys_left_out = room <= 0
        if self._keys_left_out:
            return 0
        claim = await self._to_its_end(
            lambda lane: self._keys.claim(lane, room, self._prefetch.run_length), self._take_runs
        )
        if claim.suspects:
            self._suspects_left = True
        return sum(len(run.rows) for run in claim.runs)

    def _patience(self) -> float:
        """How long to wait at most: for a look below the marks, where late commits are, and for leases that ran out."""
        now = time.monotonic()
        sweep_in = self._cursor.sweep_in(now)
        return min(self._suspects_at - now, math.inf if sweep_in is None else sweep_in)

    async def _wait_for_room(self) -> None:
        # What is best changes while handlers run, and every row that is done with lets us look again. Those whose
        # outcome is being written are no reason to wait, unless writing does not keep up.
        while self._ledger.occupied > self._prefetch.refill_at or self._ledger.finished > self._prefetch.capacity:
            await self._wait_for(self._ledger.wait_for_change())

    async def _wait_until_open(self) -> None:
        if not self._open.is_set():
            await self._wait_for(self._open.wait())

    async def _wait_for_handlers(self, count: int, seconds: float | None = None) -> None:
        await self._wait_for(self._ledger.wait_until_at_most(count), seconds)

    async def _wait_for(self, handlers: Awaitable[object], seconds: float | None = None) -> None:
        self._waits_for_handlers = True
        try:
            async with asyncio.timeout(seconds):
                await handlers
        finally:
            self._waits_for_handlers = False
            self._claimed_at = time.monotonic()  # nothing could be claimed before

    async def _run_suspects(self) -> None:
        """Claim rows whose lease ran out, one by one, and let each run with nothing beside it."""
        # Counted from when the first one is alone: until then the rows in hand run as ever.
        alone_at: float | None = None
        self._suspects_left = True
        while alone_at is None or time.monotonic() - alone_at < _SUSPECT_SLICE:
            if not await self._claim_suspect():
                self._suspects_left = False
                break
            try:
                await self._wait_for_handlers(1, self._suspect_patience)
            except TimeoutError:
                # Something slow is running. Others may not wait for it: fresh rows have as much time, and then again.
                await give_back(self._ledger.take_aside(), self._link, self._monitor)
                self._suspects_at = time.monotonic() + self._suspect_patience
                self._suspect_patience = min(2 * self._suspect_patience, _LONGEST_PATIENCE)
                self._suspects_left = False
                return
            self._suspect_patience = _SUSPECT_SLICE
            alone_at = alone_at or time.monotonic()
            self._ledger.admit_all()
            await self._wait_for_handlers(0)
        now = time.monotonic()
        took = 0.0 if alone_at is None else now - alone_at
        # Those that are left need not wait for more to expire.
        rest = 0.0 if self._suspects_left else min(self._max_interval, max(_SUSPECT_SLICE, self._lease_seconds / 10))
        self._suspects_at = now + max(took, rest)
        if self._suspects_left:
            self._idle_wait.expect(took)

    async def _claim_suspect(self) -> bool:
        claim = await self._to_its_end(
            lambda lane: lane.claim_suspect(self._cursor, lease_seconds=self._lease_seconds),
            self._keep_aside,
        )
        if claim.rows or not self._keys.have_suspects:
            return bool(claim.rows)
        return await self._to_its_end(self._keys.claim_suspect, self._keep_runs_aside) is not None

    async def _to_its_end(
        self, operation: Callable[[StoreConnection], Awaitable[_T]], take: Callable[[_T], None]
    ) -> _T:
        """Claim, and take what was claimed even if we are stopped meanwhile: nobody else knows of those rows."""
        claim = await self._link.run(operation, to_its_end=True)
        take(claim)
        if self._stopping:
            await asyncio.sleep(0)  # and no more is claimed: here the stop arrives
        return claim

    def _take(self, claim: Claim) -> None:
        self._journal.claimed(self._cursor.queues, claim.rows)
        self._ledger.add(claim.rows, claim.expires_at)
        self._ledger.admit_all()

    def _take_runs(self, claim: RunClaim) -> None:
        if claim.runs:
            self._keep_runs_aside(claim)
            self._ledger.admit_all()

    def _keep_runs_aside(self, claim: RunClaim | None) -> None:
        if claim is not None:
            self._journal.claimed(self._cursor.queues, [row for run in claim.runs for row in run.rows])
            self._ledger.add_runs(claim.runs, claim.expires_at)

    def _keep_aside(self, claim: Claim) -> None:
        if claim.rows:  # that there are no suspects is no news
            self._journal.claimed(self._cursor.queues, claim.rows)
        self._ledger.add(claim.rows, claim.expires_at)
