"""A line in the log now and then, where nobody watches."""

import asyncio
import logging

from faststream_outbox.cli.status import Status
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor


class ProgressLines(Loop):
    """Tells how far the relay is, when something has happened since the last time, or rows wait."""

    failure_event = "progress_failed"
    task = "Telling the progress"

    def __init__(self, status: Status, monitor: Monitor, *, interval: float) -> None:
        super().__init__(monitor)
        self._status = status
        self._interval = interval
        self._told: object = ("running", (0, 0, 0), None)

    async def step(self) -> None:
        """Rest, and tell."""
        await asyncio.sleep(self._interval)
        self.tell()

    def tell(self) -> None:
        """Say it, if there is something new."""
        news = (self._status.state, self._status.figures.done, self._status.figures.lag)
        if news == self._told:
            return
        self._told = news
        figures = self._status.as_dict()
        message = f"{figures['relayed']:,} rows relayed, {figures['per_second']:,.0f} per second."
        self._monitor.report("relay_progress", message, level=logging.INFO, **figures)
