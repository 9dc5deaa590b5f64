"""Tells the metrics recorder, now and then, what is in the table."""

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

# Counting reads the whole table, so it rests for that many times as long as it took.
_REST: Final = 20.0
# Whatever takes longer is a server that does not answer, or a table that is too large to be counted this way.
_LONGEST_COUNT: Final = 60.0


class BacklogWatch(Loop):
    """Counts the rows of every queue, on a connection that it holds only meanwhile."""

    failure_event = "backlog_failed"
    task = "Counting the backlog"

    def __init__(self, store: Store, queues: Iterable[str], monitor: Monitor, *, interval: float) -> None:
        super().__init__(monitor)
        self._store = store
        self._interval = interval
        self._own_queues = frozenset(queues)
        self._told: frozenset[str] = frozenset()
        self._began_at: float | None = None

    async def step(self) -> None:
        """Count, tell, and rest."""
        self._began_at = None
        try:
            self._tell(await within(_LONGEST_COUNT, self._count()))
        except Exception as error:  # noqa: BLE001 - the next count may succeed, and nothing else depends on this one
            message = f"The rows could not be counted, and their gauges stand still: {describe(error)}"
            self._monitor.report(self.failure_event, message, level=logging.WARNING, error=error)
        await asyncio.sleep(max(self._interval, _REST * self._took))

    @property
    def _took(self) -> float:
        # A failed count may have been work for the server, too; waiting for a connection was not.
        return 0.0 if self._began_at is None else time.monotonic() - self._began_at

    async def _count(self) -> list[QueueStats]:
        async with self._store.connect() as lane:
            self._began_at = time.monotonic()
            return await lane.stats()

    def _tell(self, counted: list[QueueStats]) -> None:
        backlogs = {each.queue: each for each in counted}
        # A queue that has become empty is not in the table any more, and its gauges would stand still.
        for queue in sorted(self._own_queues | self._told | backlogs.keys()):
            self._monitor.record("backlog", **asdict(backlogs.get(queue) or _nothing_in(queue)))
        self._told = frozenset(backlogs)


def wanted_interval(recorder: MetricsRecorder | None) -> float | None:
    """Tell how often a recorder wants to hear of the backlog, in seconds; None when it does not."""
    interval = getattr(recorder, "backlog_interval", None)
    # A recorder may be any callable, a mock for one, which has every attribute that it is asked for.
    return float(interval) if isinstance(interval, int | float) and interval > 0 else None


def _nothing_in(queue: str) -> QueueStats:
    return QueueStats(
        queue,
        ready=0,
        scheduled=0,
        in_flight=0,
        expired=0,
        blocked=0,
        dead=0,
        blocked_keys=0,
        parked_keys=0,
        oldest_ready_age=None,
        oldest_age=None,
        oldest_due_age=None,
    )
