"""Decides how long to wait after a claim that found no row: until a wake-up or until a row is due."""

import asyncio
import math
import random
from contextlib import suppress
from typing import Final

from faststream_outbox.engine.options import SubscriberOptions

# A row that another process is claiming looks free. Wait a little, so that two claimers do not chase each other; and
# longer each time while it stays so, because the row may be locked.
_SHORTEST: Final = 0.005


class IdleWait:
    """Waits between the claims of one claimer; longer each time, until a claim finds rows again."""

    def __init__(self, options: SubscriberOptions) -> None:
        self._min_interval = self._interval = options.min_fetch_interval
        self._max_interval = options.max_fetch_interval
        self._shortest = _SHORTEST
        self._woken = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """End the wait: rows may have been committed."""
        self._woken.set()

    def expect(self, seconds: float) -> None:
        """Wake in so many seconds, when a row is due that the database did not know of at the last claim.

        Only the earliest alarm is kept: after the claim that follows, the database says when the next row is due.
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

    @property
    def woken(self) -> bool:
        """Whether `wake` was called since `clear_wake`."""
        return self._woken.is_set()

    def clear_wake(self) -> bool:
        """Forget earlier wake-ups, because the claim that follows sees their rows; return whether there was one."""
        woken = self._woken.is_set()
        self._woken.clear()
        return woken

    def shorten(self) -> None:
        """Begin with short waits again, because a claim found rows."""
        self._shortest = _SHORTEST
        self._interval = self._min_interval

    async def wait(self, due: float | None, *, at_most: float = math.inf) -> None:
        """Wait, no longer than until the next row is due; `due` is in seconds, None when no row is known."""
        # Longer each time, with a random part, so that processes do not poll at the same moment.
        seconds = self._interval * (0.75 + random.random() / 4)  # noqa: S311 - no secret depends on it
        self._interval = min(self._interval * 2, self._max_interval)
        if due is not None:
            seconds = min(seconds, max(due, self._shortest))
        if due is not None and due <= 0:
            self._shortest = min(2 * self._shortest, self._max_interval)
        seconds = min(seconds, max(at_most, _SHORTEST))
        with suppress(TimeoutError):
            # Not wait_for: it loses a cancellation that arrives at the moment when the event is set.
            async with asyncio.timeout(seconds):
                await self._woken.wait()
            self.shorten()

    def close(self) -> None:
        """Cancel the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()
