"""Bounds the bytes that are on their way to a destination, so that a slow connection confirms them in time."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

# How many bytes may be on their way at first: enough for a fast network. It grows with each quick confirmation.
_FIRST_BYTES: Final = 2**20
# So many may be on their way however slow the connection is, and so many at most: a relay has no more in hand.
_LEAST_BYTES: Final = 2**18
_MOST_BYTES: Final = 2**26
# The parts of the time for a confirmation below which it is quick, and above which it is slow. Twice as many bytes take
# twice as long, so a quick one stays far from slow.
_QUICK: Final = 1 / 8
_SLOW: Final = 1 / 3


class Window:
    """Lets messages be sent while there is room, in the order in which they ask; adapts to the time that they take.

    Without it all rows in hand would be sent at once. On a slow connection none of them would be confirmed in time, and
    all of them would be sent again, without end.
    """

    def __init__(self) -> None:
        self._size = _FIRST_BYTES
        self._on_their_way = 0
        # Held by the one that waits for room; the others wait behind it.
        self._entry = asyncio.Lock()
        self._freed = asyncio.Event()
        self._shrunk_at = 0.0
        # When the destination answered last, and when a message was last given up that had waited for any answer.
        self._answered_at = 0.0
        self._silent_at = 0.0

    def count(self, sizes: Sequence[int]) -> int:
        """Return how many messages, from the first on, to send together: at least one, and no more than fit."""
        total = 0
        for number, size in enumerate(sizes):
            total += size
            if total > self._size and number:
                return number
        return len(sizes)

    @asynccontextmanager
    async def room(self, size: int, confirm_timeout: float, *, may_skip: bool = False) -> AsyncIterator[bool]:
        """Wait for room, and send and confirm messages of this size inside; a larger one than fits is sent alone.

        With `may_skip` the value is False, and nothing is to be sent, if the destination has become silent while this
        one waited. Otherwise each that waits would find that out by itself, one after the other.
        Call `answered` inside, whenever there is an answer.
        """
        asked = time.monotonic()
        async with self._entry:
            while self._on_their_way and self._on_their_way + size > self._size:
                self._freed.clear()
                await self._freed.wait()
            skip = may_skip and self._silent_at > asked and self._silent_at > self._answered_at
            self._on_their_way += 0 if skip else size
        if skip:
            yield False
            return
        began = time.monotonic()
        try:
            yield True
        finally:
            self._adapt(size, began, confirm_timeout)
            self._on_their_way -= size
            self._freed.set()

    def answered(self) -> None:
        """Note that the destination has confirmed or refused a message."""
        self._answered_at = time.monotonic()

    def _adapt(self, size: int, began: float, confirm_timeout: float) -> None:
        now = time.monotonic()
        if now - began > _SLOW * confirm_timeout:
            # A large message may be too slow by itself, and says nothing of those behind it.
            if size <= _LEAST_BYTES and self._answered_at < began:
                self._silent_at = now
            if began >= self._shrunk_at:  # those that were sent before have waited for the same bytes
                self._size = max(_LEAST_BYTES, min(self._size, self._on_their_way) // 2)
                self._shrunk_at = now
        elif now - began < _QUICK * confirm_timeout and 2 * self._on_their_way > self._size:
            self._size = min(_MOST_BYTES, self._size + size)
