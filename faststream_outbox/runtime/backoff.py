"""How long to wait after a failure: longer each time, never long, and from the start again after a success."""

import asyncio
import random
from typing import Final

# The first comes at once, for a person; the longest lets deliveries go on within two seconds of the server's return.
_FIRST: Final = 0.05
_LONGEST: Final = 1.0


class Backoff:
    """The waits of one loop."""

    def __init__(self, longest: float = _LONGEST) -> None:
        self._longest = longest
        self._next = _FIRST

    def reset(self) -> None:
        """Begin again, because something worked."""
        self._next = _FIRST

    async def wait(self) -> None:
        """Wait, and longer the next time."""
        seconds, self._next = self._next, min(self._next * 2, self._longest)
        # Half fixed, half random, so that the subscribers of a fleet do not come back in step.
        await asyncio.sleep(seconds * (0.5 + random.random() / 2))  # noqa: S311 - to spread, not to hide
