"""Tells other processes that rows have come, once for all that came meanwhile."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from faststream_outbox.runtime.events import Monitor
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.timeouts import within

# Between two statements. What is announced in between shares the next, and nobody can tell ten milliseconds.
SPACING: Final = 0.01
# How long one statement may take, waiting for a connection included, before it is tried on another one.
_LIMIT: Final = 5.0


class Notifier(Loop):
    """Sends what is put, the first at once; what could not be sent is kept until it is."""

    failure_event = "notify_failed"
    task = "Notifying other processes"

    def __init__(self, notify: Callable[[Iterable[str]], Coroutine[Any, Any, None]], monitor: Monitor) -> None:
        super().__init__(monitor)
        self._notify = notify
        self._queues: set[str] = set()
        self._wanted = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()

    def put(self, queues: Iterable[str]) -> None:
        """Have these queues announced."""
        self._queues.update(queues)
        if self._queues:
            self._wanted.set()
            self._all_sent.clear()

    async def step(self) -> None:
        """Send what there is, and let some gather."""
        await self._wanted.wait()
        queues, self._queues = self._queues, set()
        self._wanted.clear()
        try:
            await within(_LIMIT, self._notify(sorted(queues)))
        except BaseException:
            self.put(queues)
            raise
        if not self._queues:
            self._all_sent.set()
        await asyncio.sleep(SPACING)

    async def finish(self, seconds: float) -> None:
        """Stop when all is sent, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._all_sent.wait()
        except TimeoutError as error:
            # The rows are committed all the same.
            message = "The last rows could not be announced to other processes, which find them by polling."
            self._monitor.report(self.failure_event, message, error=error)
        await self.stop()
