"""Gives back claimed rows that are not started here soon: another process may have a free worker."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from faststream_outbox.engine.claim.prefetch import CallerDemand
from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.engine.shutdown import give_back
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.wakeup.wakeup import Announce

# Several times the half second of work that is claimed ahead: a row waits longer only behind a slow handler.
_LONGEST_WAIT: Final = 2.0
_LOOK_EVERY: Final = 0.5


class StaleReturner(Loop):
    """Looks twice a second for rows that have waited too long; if there are some, calls `too_slow` with that time."""

    failure_event = "release_failed"
    task = "Giving rows back"

    def __init__(
        self,
        lane: ReconnectingLane,
        ledger: Ledger,
        monitor: Monitor,
        *,
        too_slow: Callable[[float], None],
        max_wait: float = 0.0,
        announce: Announce | None = None,
    ) -> None:
        super().__init__(monitor)
        self._announce = announce
        self._lane = lane
        self._ledger = ledger
        self._too_slow = too_slow
        self._longest_wait = _LONGEST_WAIT + max_wait

    async def step(self) -> None:
        """Wait a little, and give back the rows that have waited too long."""
        await asyncio.sleep(_LOOK_EVERY)
        stale = self._ledger.take_claimed_before(time.monotonic() - self._longest_wait)
        if stale:
            self._too_slow(_LONGEST_WAIT)
            await give_back(stale, self._lane, self._monitor, self._announce)


class UnwantedReturner(Loop):
    """Gives back the rows of callers that stopped waiting while their row was being claimed."""

    failure_event = "release_failed"
    task = "Giving rows back"

    def __init__(
        self,
        lane: ReconnectingLane,
        ledger: Ledger,
        monitor: Monitor,
        demand: CallerDemand,
        announce: Announce | None = None,
    ) -> None:
        super().__init__(monitor)
        self._announce = announce
        self._lane = lane
        self._ledger = ledger
        self._demand = demand
        self._giving_back = asyncio.Lock()

    async def step(self) -> None:
        """Wait until more rows than callers wait, and give back the rest."""
        while self._unwanted <= 0:
            await self._ledger.wait_for_arrivals(None)
        async with self._giving_back:
            unwanted = self._ledger.take_waiting(max(0, self._unwanted))
            rows = self._ledger.remove(held.lease for held in unwanted)
            await give_back(rows, self._lane, self._monitor, self._announce)

    async def stop(self) -> None:
        """Stop when no rows are being given back: a release that is cancelled would leave them leased."""
        async with self._giving_back:
            await super().stop()

    @property
    def _unwanted(self) -> int:
        return self._ledger.waiting - self._demand.callers
