"""Reads which queues are paused while the listening connection does not."""

import asyncio
from collections.abc import Callable
from typing import Final

from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage import Store
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.errors import sqlstate
from faststream_outbox.storage.nodes import LOOK_EVERY

# A listening connection that works reads them once a second; a slow answer is no reason to read them twice.
_LATE: Final = 1.5
_READ_LIMIT: Final = 2.0


class ControlReader(Loop):
    """Looks once a second whether the pauses were read lately; if they were not, reads them through the pool.

    That is so behind a pooler, during an outage of the listening connection, and where the table cannot be read.
    """

    failure_event = "control_unreadable"
    task = "Reading which queues are paused"

    def __init__(self, store: Store, on_change: Callable[[], None], monitor: Monitor) -> None:
        super().__init__(monitor)
        self._store = store
        self._control = store.control
        self._on_change = on_change

    def start(self) -> None:
        """Start to look."""
        self._control.read_expected = True
        super().start()

    async def stop(self) -> None:
        """Stop looking."""
        self._control.read_expected = False
        await super().stop()

    async def step(self) -> None:
        """Wait, and read the pauses if the listening connection has not."""
        await asyncio.sleep(LOOK_EVERY)
        if lease_now() - self._control.looked_at < _LATE:
            return
        try:
            changed = await within(_READ_LIMIT, self._store.read_control())
        except Exception as error:
            if sqlstate(error):  # an answer: the table cannot be read, and rows are claimed as if there were none
                self._control.read_expected = False
            raise
        if changed:
            self._on_change()
