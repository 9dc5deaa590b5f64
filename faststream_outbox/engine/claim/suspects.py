"""Suspects: rows that two processes did not settle, perhaps because their handler crashed both."""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

from faststream_outbox.engine.claim.idle_wait import IdleWait
from faststream_outbox.engine.claim.ledger_claims import LedgerClaims
from faststream_outbox.engine.claim.recovery import Recovery
from faststream_outbox.engine.context import EngineContext

# While a suspect runs, nothing else does: suspects get at most half of the time, in slices of this length.
_SLICE: Final = 0.5
# How long a claimed suspect waits for the other rows to end. Doubled each time, because a slow handler may always run.
_LONGEST_WAIT: Final = 60.0

# Waits for handlers, so many seconds at most; the claimer does not count as idle meanwhile.
WaitForHandlers = Callable[[Awaitable[object], float | None], Awaitable[None]]


class Suspects:
    """Claims suspects one at a time and runs each alone, so that a crash affects no other row.

    `wait_to_be_alone=False`: never wait for other rows to end, but claim one suspect when none is in hand. That is for
    callers that pull rows and hold them for as long as they like.
    """

    def __init__(
        self,
        context: EngineContext,
        claims: LedgerClaims,
        recovery: Recovery,
        idle_wait: IdleWait,
        wait_for_handlers: WaitForHandlers,
        *,
        wait_to_be_alone: bool,
    ) -> None:
        self._context = context
        self._claims = claims
        self._recovery = recovery
        self._ledger = context.ledger
        self._idle_wait = idle_wait
        self._wait_for_handlers = wait_for_handlers
        self._wait_to_be_alone = wait_to_be_alone
        # A tenth of a lease: the delay is small against the lease that had to run out before.
        longest_pause = max(0.5, context.options.lease_ttl_seconds / 10)
        self._longest_pause = min(context.options.max_fetch_interval, longest_pause)
        self._due_at = 0.0
        self._may_be_left = True
        self._not_before = 0.0
        self._wait_limit = _SLICE

    @property
    def are_due(self) -> bool:
        """Whether to look for suspects now."""
        return time.monotonic() >= self.due_at

    @property
    def due_at(self) -> float:
        """When to look for suspects again, on the monotonic clock; infinity while rows in hand forbid it."""
        return self._due_at if self._allowed else math.inf

    @property
    def _allowed(self) -> bool:
        return self._wait_to_be_alone or not len(self._ledger)

    def note_met(self) -> None:
        """Note that a claim of other rows met a suspect."""
        self._may_be_left = True

    def make_due(self) -> bool:
        """Make suspects due if there may be some, because no other row has come; return whether they are due now."""
        if self._allowed and self._may_be_left:
            self._due_at = self._not_before
        return self._may_be_left and self.are_due

    async def run(self) -> None:
        """Claim suspects, one by one, and run each alone."""
        expected = self._may_be_left
        # First, because a row that comes back for the first time need not be alone.
        if await self._recovery.run():
            self._idle_wait.wake()
        await self._run()
        if expected and not self._may_be_left:
            # A suspect that was met and cannot be claimed is locked by a transaction: do not look again at once.
            self._not_before = time.monotonic() + _SLICE

    async def _run(self) -> None:
        if not self._wait_to_be_alone:
            self._may_be_left = await self._claims.claim_suspect()
            self._ledger.admit_added()
            self._due_at = time.monotonic() + self._longest_pause
            return
        # The slice begins when the first suspect is alone: until then the rows in hand run as usual.
        alone_at: float | None = None
        self._may_be_left = True
        while alone_at is None or time.monotonic() - alone_at < _SLICE:
            if not await self._claims.claim_suspect():
                self._may_be_left = False
                break
            try:
                await self._wait_for_handlers(self._ledger.wait_until_at_most(1), self._wait_limit)
            except TimeoutError:
                await self._postpone()
                return
            self._wait_limit = _SLICE
            alone_at = alone_at or time.monotonic()
            self._ledger.admit_added()
            await self._wait_for_handlers(self._ledger.wait_until_at_most(0), None)
        now = time.monotonic()
        took = 0.0 if alone_at is None else now - alone_at
        # Suspects that are left need not wait until more leases run out.
        self._due_at = now + max(took, 0.0 if self._may_be_left else self._longest_pause)
        if self._may_be_left:
            self._idle_wait.expect(took)

    async def _postpone(self) -> None:
        """Give back the suspect, because a slow handler runs; fresh rows must not wait for that handler."""
        await self._context.give_back(self._ledger.take_added(), announce=False)
        self._due_at = time.monotonic() + self._wait_limit
        self._wait_limit = min(2 * self._wait_limit, _LONGEST_WAIT)
        self._may_be_left = False
