"""Obeys operators: claims nothing from the queues that they paused, and gives back what was not started."""

import asyncio
import logging

from faststream_outbox.engine.context import EngineContext, in_time


class Pauses:
    """The queues of one pipeline that operators have paused.

    A comparison of two numbers says whether anything has changed: it is cheap enough for every step of a claimer.
    """

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._control = context.store.control
        self._seen = 0
        self.queues: frozenset[str] = frozenset()
        self._returning: set[asyncio.Task[None]] = set()

    @property
    def changed(self) -> bool:
        """Whether pauses of any queue have changed since the last `update`."""
        return self._control.version != self._seen

    def update(self) -> bool:
        """Take over what operators want now, and log it; return whether it concerns queues of this pipeline."""
        self._seen = self._control.version
        before, self.queues = self.queues, self._control.paused_of(self._context.queues)
        for queue in sorted(self.queues - before):
            message = f"Queue {queue} is paused {self._control.pauses[queue]}. Its rows wait; those that run end."
            self._context.monitor.report("queue_paused", message, level=logging.INFO, queue=queue)
        for queue in sorted(before - self.queues):
            message = f"Queue {queue} is not paused any more: its rows are delivered again."
            self._context.monitor.report("queue_resumed", message, level=logging.INFO, queue=queue)
        return before != self.queues

    def give_back(self) -> None:
        """Give back the rows of paused queues that no handler has begun; their delivery is not counted."""
        if not self.queues:
            return
        rows = self._context.ledger.take_of(self.queues)
        if not rows:
            return
        # In a task of its own: a release that is cancelled would leave the rows leased.
        returning = asyncio.create_task(self._context.give_back(rows, announce=False))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)

    async def finish(self) -> None:
        """Wait until the rows that are being given back are free."""
        if self._returning:
            await in_time(asyncio.wait(self._returning))
