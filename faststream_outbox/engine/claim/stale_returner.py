"""Gives back claimed rows that are not started here soon: another process may have a free worker."""

import asyncio
from collections.abc import Callable
from typing import Final

from faststream_outbox.engine.claim.prefetch import CallerDemand
from faststream_outbox.engine.context import EngineContext
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.storage.clock import lease_now

# Several times the half second of work that is claimed ahead: a row waits longer only behind a slow handler.
_LONGEST_WAIT: Final = 2.0
_LOOK_EVERY: Final = 0.5


class _Returner(Loop):
    failure_event = "release_failed"
    task = "Giving rows back"

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context.monitor)
        self._context = context
        self._ledger = context.ledger


class StaleReturner(_Returner):
    """Looks twice a second for rows that have waited too long; if there are some, calls `too_slow` with that time."""

    def __init__(self, context: EngineContext, too_slow: Callable[[float], None]) -> None:
        super().__init__(context)
        self._too_slow = too_slow
        self._longest_wait = _LONGEST_WAIT + context.options.max_wait_ms / 1000

    async def step(self) -> None:
        """Wait a little, and give back the rows that have waited too long."""
        await asyncio.sleep(_LOOK_EVERY)
        stale = self._ledger.take_claimed_before(lease_now() - self._longest_wait)
        if stale:
            self._too_slow(_LONGEST_WAIT)
            await self._context.give_back(stale)


class UnwantedReturner(_Returner):
    """Gives back the rows of callers that stopped waiting while their row was being claimed."""

    def __init__(self, context: EngineContext, demand: CallerDemand) -> None:
        super().__init__(context)
        self._demand = demand
        self._giving_back = asyncio.Lock()

    async def step(self) -> None:
        """Wait until more rows than callers wait, and give back the rest."""
        while self._unwanted <= 0:
            await self._ledger.wait_for_arrivals(None)
        async with self._giving_back:
            unwanted = self._ledger.take_waiting(max(0, self._unwanted))
            await self._context.give_back(self._ledger.remove(held.lease for held in unwanted))

    async def stop(self) -> None:
        """Stop when no rows are being given back: a release that is cancelled would leave them leased."""
        async with self._giving_back:
            await super().stop()

    @property
    def _unwanted(self) -> int:
        return self._ledger.waiting - self._demand.callers
