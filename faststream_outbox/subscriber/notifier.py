"""Tells other processes that rows have come, once for all that came meanwhile."""

import asyncio
from collections.abc import Iterable
from typing import Final

from faststream_outbox.storage import Store
from faststream_outbox.subscriber.events import Monitor
from faststream_outbox.subscriber.loop import Loop
from faststream_outbox.subscriber.patience import within

# Between two statements. What is announced in between shares the next, and nobody can tell ten milliseconds.
_SPACING: Final = 0.01
# How long one statement may take, waiting for a connection included, before it is tried on another one.
_LIMIT: Final = 5.0


class Notifier(Loop):
    """Sends what is put, the first at once; what could not be sent is kept until it is."""

    failure_event = "notify_failed"

    def __init__(self, store: Store, monitor: Monitor) -> None:
        super().__init__(monitor)
        self._store = store
        self._queues: set[str] = set()
        self._wanted = asyncio.Event()

    def put(self, queues: Iterable[str]) -> None:
        """Have these queues announced."""
        self._queues.update(queues)
        if self._queues:
            self._wanted.set()

    async def step(self) -> None:
        """Send what there is, and let some gather."""
        await self._wanted.wait()
        await self._send(_LIMIT)
        await asyncio.sleep(_SPACING)

    async def finish(self, seconds: float) -> None:
        """Stop, and send what is left."""
        await self.stop()
        if not self._queues:
            return
        try:
            await self._send(seconds)
        except Exception as error:  # noqa: BLE001 - the rows are committed, and polling finds them
            self._monitor.report(
                self.failure_event,
                f"The rows of {len(self._queues)} queues could not be announced: polling finds them. {error!r}",
                error=error,
            )

    async def _send(self, limit: float) -> None:
        queues, self._queues = self._queues, set()
        self._wanted.clear()
        try:
            await within(limit, self._store.notify(sorted(queues)))
        except BaseException:
            self.put(queues)
            raise
