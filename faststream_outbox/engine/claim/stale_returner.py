"""Gives back rows that were claimed ahead and that no worker came to start: others may have one that is free."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.engine.shutdown import give_back
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.wakeup.wakeup import Announce

# Several times as long as rows are claimed ahead, so that only a worker held up by something slow lets it pass.
_LONGEST_WAIT: Final = 2.0
_LOOK_EVERY: Final = 0.5


class StaleReturner(Loop):
    """Looks now and then for rows that have waited too long; `too_slow` hears for how long."""

    failure_event = "release_failed"
    task = "Giving rows back"

    def __init__(
        self,
        link: ReconnectingLane,
        ledger: Ledger,
        monitor: Monitor,
        *,
        too_slow: Callable[[float], None],
        max_wait: float = 0.0,
        announce: Announce | None = None,
    ) -> None:
        super().__init__(monitor)
        self._announce = announce
        self._link = link
        self._ledger = ledger
        self._too_slow = too_slow
        self._longest_wait = _LONGEST_WAIT + max_wait

    async def step(self) -> None:
        """Wait a little, and give back what has waited for too long."""
        await asyncio.sleep(_LOOK_EVERY)
        stale = self._ledger.take_waiting_since(time.monotonic() - self._longest_wait)
        if stale:
            self._too_slow(_LONGEST_WAIT)
            await give_back(stale, self._link, self._monitor, self._announce)
