"""Counts the rows of every queue at intervals, for the metrics recorder."""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from faststream_outbox.metrics import MetricsRecorder
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage import QueueStats, Store

# Counting reads up to 100,000 rows of each sort: pause this many times as long as a count took.
_REST: Final = 20.0
# After this time the server does not answer.
_LONGEST_COUNT: Final = 60.0


class BacklogWatch(Loop):
    """Counts the rows of every queue, on a connection that it takes from the pool for each count."""

    failure_event = "backlog_failed"
    task = "Counting the backlog"

    def __init__(self, store: Store, queues: Iterable[str], monitor: Monitor, *, interval: float) -> None:
        super().__init__(monitor)
        self._store = store
        self._interval = interval
        self._own_queues = frozenset(queues)
        self._counted: frozenset[str] = frozenset()
        self._began_at: float | None = None

    async def step(self) -> None:
        """Count, record the gauges, and pause."""
        self._began_at = None
        try:
            self._record(await within(_LONGEST_COUNT, self._count()))
        except Exception as error:  # noqa: BLE001 - the next count may succeed, and nothing else depends on this one
            message = f"Could not count the rows; the backlog gauges keep their last values: {describe(error)}"
            self._monitor.report(self.failure_event, message, level=logging.WARNING, error=error)
        # A failed count is work for the server too; waiting for a connection is not.
        took = 0.0 if self._began_at is None else time.monotonic() - self._began_at
        await asyncio.sleep(max(self._interval, _REST * took))

    async def _count(self) -> list[QueueStats]:
        async with self._store.connect() as lane:
            self._began_at = time.monotonic()
            return await lane.stats()

    def _record(self, counted: list[QueueStats]) -> None:
        backlogs = {each.queue: each for each in counted}
        # An empty queue is no longer in the table: record zeros, or its gauges would keep their last values.
        for queue in sorted(self._own_queues | self._counted | backlogs.keys()):
            self._monitor.record("backlog", **asdict(backlogs.get(queue) or QueueStats(queue)))
        self._counted = frozenset(backlogs)


def wanted_interval(recorder: MetricsRecorder | None) -> float | None:
    """Return the seconds between two counts that a recorder asks for; None if it asks for none."""
    interval = getattr(recorder, "backlog_interval", None)
    # A recorder may be any callable; a mock has every attribute.
    return float(interval) if isinstance(interval, int | float) and interval > 0 else None
