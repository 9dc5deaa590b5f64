"""How long to wait when a claim has brought nothing: until a call, until a row is due, never too long."""

import asyncio
import math
import random
from contextlib import suppress
from typing import Final

# A row that somebody is claiming just now looks free. A short wait, lest two claimers chase each other; and longer
# ones, should it stay so because somebody holds it locked.
_SHORTEST: Final = 0.005


class IdleWait:
    """The waits between the claims of one claimer; longer each time while nothing comes."""

    def __init__(self, *, min_interval: float, max_interval: float) -> None:
        self._min_interval = min_interval
        self._max_interval = max_interval
        self._interval = min_interval
        self._shortest = _SHORTEST
        self._called = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Say that rows may have come."""
        self._called.set()

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

    @property
    def called(self) -> bool:
        """Whether rows may have come since calls were forgotten."""
        return self._called.is_set()

    def forget_calls(self) -> None:
        """Begin to listen: whatever was called before now, the claim that follows will see."""
        self._called.clear()

    def shorten(self) -> None:
        """Wait for a short time again, because rows have come."""
        self._shortest = _SHORTEST
        self._interval = self._min_interval

    async def wait(self, due: float | None, *, at_most: float = math.inf) -> None:
        """Wait, no longer than until the next row is due; `due` is in seconds, None when no row is known."""
        # Longer each time, and never in step with others.
        seconds = self._interval * (0.75 + random.random() / 4)  # noqa: S311 - to spread, not to hide
        self._interval = min(self._interval * 2, self._max_interval)
        if due is not None:
            seconds = min(seconds, max(due, self._shortest))
        if due == 0:
            self._shortest = min(2 * self._shortest, self._max_interval)
        seconds = min(seconds, max(at_most, _SHORTEST))
        with suppress(TimeoutError):
            # Not wait_for, which forgets that it was cancelled when what it waits for happens at that moment.
            async with asyncio.timeout(seconds):
                await self._called.wait()
            self.shorten()

    def close(self) -> None:
        """Expect nothing any more."""
        if self._alarm is not None:
            self._alarm.cancel()
