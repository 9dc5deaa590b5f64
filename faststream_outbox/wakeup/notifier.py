"""Sends NOTIFY to other processes, one for all rows that were committed since the last."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.runtime.timeouts import within

# Seconds between two statements; what is announced in between shares the next. Ten milliseconds are not noticed.
SPACING: Final = 0.01
# How long one statement may take, with the wait for a connection, before another connection is tried.
_LIMIT: Final = 5.0


class Notifier(Loop):
    """Sends the names of queues that are put, the first at once; names that could not be sent are kept."""

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
        """Announce these queues with the next statement."""
        self._queues.update(queues)
        if self._queues:
            self._wanted.set()
            self._all_sent.clear()

    async def step(self) -> None:
        """Wait for names, send them, and pause so that others can gather."""
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
        """Stop when all names are sent, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._all_sent.wait()
        except TimeoutError as error:
            message = "Could not announce the last rows to other processes; they find the rows by polling."
            self._monitor.report(self.failure_event, message, error=error)
        await self.stop()
