"""What a relay does while the broker it sends to is down: nothing, until it is back."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from faststream_outbox.relay.targets.base import Target
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor

# How long between two looks at a broker that is down: soon at first, and never long.
_FIRST_LOOK: Final = 0.2
_LONGEST_WAIT: Final = 2.0
# A broker that does not answer in this time is as good as down.
_ANSWER_SECONDS: Final = 5.0
# An outage that follows another so soon is the same one: the broker answers, and takes nothing.
_SAME_OUTAGE: Final = 10.0


class Outage(Loop):
    """Stops the claims when the broker fails, and lets them go on when it answers again."""

    failure_event = "relay_failed"
    task = "Waiting for the broker"

    def __init__(
        self, target: Target, monitor: Monitor, *, pause: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        super().__init__(monitor)
        self._target = target
        self._pause = pause
        self._resume = resume
        self.reason: Exception | None = None
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()
        self._over_at = 0.0
        self._wait = _FIRST_LOOK

    @property
    def lasts(self) -> bool:
        """Whether the broker is down, as far as is known."""
        return self._begun.is_set()

    def begin(self, error: Exception) -> None:
        """Take note that the broker is down."""
        if self.lasts:
            return
        self.reason = error
        self._begun.set()
        self._over.clear()
        self._pause()
        message = f"The broker is down, so nothing is claimed until it is back: {error}"
        self._monitor.report("relay_paused", message, level=logging.WARNING, error=error)

    async def endure(self, error: Exception) -> None:
        """Take note that the broker is down, and wait until it is back."""
        self.begin(error)
        await self._over.wait()

    async def step(self) -> None:
        """Wait for an outage, then for its end."""
        await self._begun.wait()
        if time.monotonic() - self._over_at > _SAME_OUTAGE:
            self._wait = _FIRST_LOOK
        while True:
            await asyncio.sleep(self._wait)
            self._wait = min(2 * self._wait, _LONGEST_WAIT)
            if await self._answers():
                break
        self._over_at = time.monotonic()
        self.reason = None
        self._begun.clear()
        self._over.set()
        self._resume()
        self._monitor.report("relay_resumed", "The broker is back, and rows go on.", level=logging.INFO)

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._target.alive()
        except Exception:  # noqa: BLE001 - whatever it is, that is no answer
            return False
