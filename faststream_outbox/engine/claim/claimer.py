"""Claims rows while there is room for them, and waits when no row is due."""

import asyncio
import math
import time
from collections.abc import Awaitable, Collection
from contextlib import suppress
from typing import Final, Protocol

from faststream_outbox.engine.claim.idle_wait import IdleWait
from faststream_outbox.engine.claim.key_claims import LOOK_EVERY, KeyClaims
from faststream_outbox.engine.claim.ledger_claims import LedgerClaims
from faststream_outbox.engine.claim.pauses import Pauses
from faststream_outbox.engine.claim.recovery import Recovery
from faststream_outbox.engine.claim.suspects import Suspects
from faststream_outbox.engine.context import EngineContext, in_time
from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.storage.clock import lease_now

# How long the first claim waits for the lock of this node: a connection is open in milliseconds, or there is a fault.
_LONGEST_WAIT_FOR_LOCK: Final = 2.0
_BETWEEN_LOOKS_AT_LOCK: Final = 0.002
# How long it waits to know which queues are paused: a database that does not answer does not answer claims either.
_LONGEST_WAIT_FOR_CONTROL: Final = 30.0


class Demand(Protocol):
    """Decides how many rows to claim: `Prefetch` for workers, `CallerDemand` for callers that pull rows."""

    # Whether rows are not handled here, but held by callers that pull them.
    for_callers: bool

    def rows_wanted(self, ledger: Ledger) -> int:
        """Return how many rows to claim now; 0 while enough are in hand."""

    @property
    def run_length(self) -> int:
        """How many rows of one key to claim together at most."""


class Claimer(Loop):
    """Claims as many rows for the ledger as `demand` wants, one statement at a time.

    Each step: wait for room, run suspects if it is time, claim rows without a key, claim runs of rows with a key, and
    wait if nothing was left to claim.
    """

    failure_event = "claim_failed"
    task = "Claiming rows"

    def __init__(self, context: EngineContext, demand: Demand, keys: KeyClaims) -> None:
        super().__init__(context.monitor)
        self._ledger = context.ledger
        self._nodes = context.store.nodes
        self._control = context.store.control
        self._demand = demand
        self._keys = keys
        self._rows_per_claim = context.options.rows_per_claim
        self._idle_wait = IdleWait(context.options)
        self.pauses = Pauses(context)
        self._claims = LedgerClaims(context, keys, self.pauses)
        self._recovery = Recovery(context, self._claims)
        parts = (context, self._claims, self._recovery, self._idle_wait, self._wait_for_handlers)
        self._suspects = Suspects(*parts, wait_to_be_alone=not demand.for_callers)
        self._claimed_at = -math.inf
        self._resumed_at = -math.inf
        self._waits_for_handlers = False
        # Claims of keys may fail while those of other rows succeed.
        self._keys_failing_since = math.inf
        # Whether rows without a key took all of the room when it was time to claim keys.
        self._keys_left_out = False
        # Whether rows with a key may have come since the last look at all keys.
        self._woken_for_keys = False
        # When to look for rows without a key again, while there are keys to claim.
        self._keyless_at = -math.inf
        self._paused = False
        self._left_out: frozenset[str] = frozenset()
        self._open = asyncio.Event()
        self._open.set()

    def pause(self) -> None:
        """Claim nothing until `resume`."""
        self._paused = True
        self._open.clear()

    def resume(self) -> None:
        """Claim again, from the queues that are not paused."""
        self._paused = False
        self._open_if_any()

    def pause_queues(self, queues: Collection[str]) -> None:
        """Claim nothing from these queues until the next call."""
        self._left_out = frozenset(queues)
        self._leave_out()

    def obey(self) -> None:
        """Claim nothing from the queues that operators have paused, and give back their rows that were not started."""
        if self.pauses.update():
            self._leave_out()
            self.pauses.give_back()

    def _leave_out(self) -> None:
        before, now = self._claims.cursor.paused, self._left_out | self.pauses.queues
        self._claims.cursor.paused = self._keys.paused = now
        if before - now:
            self._claims.cursor.restart()  # rows that were given back lie before the marks
        self._open_if_any()
        self._idle_wait.wake()  # rows may wait in those that are not paused any more

    def _open_if_any(self) -> None:
        if self._paused or self._claims.cursor.paused.issuperset(self._claims.cursor.queues):
            self._open.clear()
        else:
            self._resumed_at = time.monotonic()
            self._open.set()

    def wake(self) -> None:
        """Look for rows now: some may have been committed, or a queue was paused or resumed."""
        if self.pauses.changed:
            self.obey()
        self._idle_wait.wake()

    def expect(self, seconds: float) -> None:
        """Look for rows in so many seconds, when a row that was just written is due."""
        self._idle_wait.expect(seconds)

    async def stop(self) -> None:
        """Stop at once; the rows of a claim that is under way are still added to the ledger."""
        self._idle_wait.close()
        await super().stop()
        if self._claims.lost_due_at < math.inf:
            with suppress(Exception):  # the leases of this node end soon after it
                await in_time(self._claims.give_back_lost())

    @property
    def idle_for(self) -> float:
        """For how many seconds no claim has succeeded, although there was room for rows and it was not paused."""
        if self._waits_for_handlers or not self._open.is_set():
            return 0.0
        since = min(self._claimed_at, self._keys_failing_since)
        return time.monotonic() - max(since, self._resumed_at)

    async def step(self) -> None:
        """Claim as many rows as there is room for; when none is left to claim, wait for more."""
        if time.monotonic() >= self._claims.lost_due_at:
            await self._claims.give_back_lost()
        await self._wait_for_room()
        # The cursor, which bounds the look for rows of dead processes, is set by the first claim.
        if self._claimed_at == -math.inf:
            await self._wait_for_lock()
        else:
            await self._recover_rows()
        room = self._room()
        if not room:
            return
        self._woken_for_keys |= self._idle_wait.clear_wake()
        if self._keys.more and time.monotonic() < self._keyless_at:
            await self._claim_only_keys(room)
            return
        in_runs = await self._claim_left_out_keys(room)
        if in_runs >= room:
            self._claimed_at = time.monotonic()
            self._idle_wait.shorten()
            return
        claim = await self._claims.claim_rows(room - in_runs)
        self._claimed_at = time.monotonic()
        if self._woken_for_keys and not claim.more:
            self._restart_keys()
        in_runs = in_runs or await self._claim_runs(room - len(claim.rows), idle=not claim.more)
        self._succeed()  # now, not after the wait for more rows
        self._keyless_at = -math.inf if claim.rows else self._claimed_at + LOOK_EVERY
        if claim.rows or in_runs:
            self._idle_wait.shorten()
        elif self._suspects.make_due():
            return
        if not claim.more and not self._keys.more:
            await self._wait_for_rows()

    def _room(self) -> int:
        """Return how many rows to claim now; 0 if all queues are paused."""
        if self.pauses.changed:
            self.obey()
        return min(self._rows_per_claim, self._demand.rows_wanted(self._ledger)) if self._open.is_set() else 0

    async def _wait_for_lock(self) -> None:
        """Wait a moment for the first look: rows that are claimed without the lock of this node are recovered late.

        It also says which queues are paused.
        """
        began = time.monotonic()
        while self._waits_for_look(time.monotonic() - began):  # noqa: ASYNC110 - a node outlives event loops
            await asyncio.sleep(_BETWEEN_LOOKS_AT_LOCK)

    def _waits_for_look(self, waited: float) -> bool:
        if self._control.read_expected:
            return waited < _LONGEST_WAIT_FOR_CONTROL
        return self._nodes.lock_expected and waited < _LONGEST_WAIT_FOR_LOCK

    async def _recover_rows(self) -> None:
        """Free the rows of processes that died, and run suspects, if it is time."""
        if self._recovery.is_due:
            await self._recovery.run()
        if self._suspects.are_due:
            await self._suspects.run()

    def _restart_keys(self) -> None:
        self._woken_for_keys = False
        self._keys.restart()

    async def _wait_for_room(self) -> None:
        # Each row that is done, and each new estimate of how long handlers take, may make room.
        while not self._demand.rows_wanted(self._ledger):
            await self._wait_for_handlers(self._ledger.wait_for_change())
        if not self._open.is_set():
            await self._wait_for_handlers(self._open.wait())

    async def _wait_for_handlers(self, handlers: Awaitable[object], seconds: float | None = None) -> None:
        self._waits_for_handlers = True
        try:
            async with asyncio.timeout(seconds):
                await handlers
        finally:
            self._waits_for_handlers = False
            self._claimed_at = time.monotonic()  # nothing could be claimed before

    async def _claim_only_keys(self, room: int) -> None:
        """Claim rows with a key only: a moment ago there were no others."""
        if await self._claim_runs(room, idle=True):
            self._idle_wait.shorten()
        self._claimed_at = time.monotonic()
        self._succeed()

    async def _claim_left_out_keys(self, room: int) -> int:
        """Claim rows with a key first, for half of the room, if those without one took all of it before."""
        if not self._keys_left_out:
            return 0
        claimed = await self._claim_runs((room + 1) // 2, idle=False)
        # A caller takes one row, so a key gets its turn only if all keys are looked at now; workers go on next time.
        while self._demand.for_callers and not claimed and self._keys.more:
            claimed = await self._claim_runs(room, idle=False)
        return claimed

    async def _claim_runs(self, room: int, *, idle: bool) -> int:
        """Claim rows with a key, if it is time and there is room left; return how many came."""
        if not (idle or self._keys.are_due):
            return 0
        self._keys_left_out = room <= 0
        if self._keys_left_out:
            return 0
        try:
            claim = await self._claims.claim_runs(room, self._demand.run_length)
        except Exception:
            self._keys_failing_since = min(self._keys_failing_since, time.monotonic())
            raise
        self._keys_failing_since = math.inf
        if claim.suspects:
            self._suspects.note_met()
            self._recovery.note_met()
        return sum(len(run.rows) for run in claim.runs)

    async def _wait_for_rows(self) -> None:
        if self._idle_wait.woken:
            self._idle_wait.shorten()  # rows have come meanwhile: claim them without asking when the next is due
        else:
            await self._idle_wait.wait(await self._claims.next_due(), at_most=self._longest_wait())
        self._restart_keys()
        self._keyless_at = -math.inf

    def _longest_wait(self) -> float:
        """Return for how long to wait: until the next sweep for rows that were committed late, or look for suspects."""
        sweep_in = self._claims.cursor.sweep_in(lease_now())
        look_at = min(self._suspects.due_at, self._recovery.due_at, self._claims.lost_due_at)
        return min(math.inf if sweep_in is None else sweep_in, look_at - time.monotonic())
