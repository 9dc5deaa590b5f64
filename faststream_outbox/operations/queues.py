"""Queues: what waits in each of them, and which are paused."""

from typing import Any

from faststream_outbox.operations.base import OperationsBase
from faststream_outbox.operations.overviews import QueueOverview
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.queue_stats import QueueCounts, QueueStats


class QueueOperations(OperationsBase):
    """The operations on queues."""

    async def queues(self, *, session: SessionOrConnection | None = None) -> list[QueueOverview]:
        """Return what waits in each queue that has messages or dead letters, is paused or is read, by name.

        That a living process reads a queue is known from the table of nodes: without it, empty queues are not listed.

        Counts are exact up to 10,000 of a sort, and lower bounds above: the cost does not grow with the table.

        Args:
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            for queue in await operations.queues():
                print(queue.queue, queue.ready, queue.oldest_claimable_age, queue.dead)

        """
        return await self._read(session, self._overviews, None)

    async def queue(self, queue: str, *, session: SessionOrConnection | None = None) -> QueueOverview | None:
        """Return what waits in one queue; None if it has no messages or dead letters, is not paused and is not read.

        Args:
            queue: The name of the queue.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            found = await operations.queue("orders")
            print(found and (found.ready, found.oldest_claimable_age))

        """
        return next(iter(await self._read(session, self._overviews, queue)), None)

    def _overviews(self, session: Any, only: str | None) -> list[QueueOverview]:
        admin, pausing = self._store.admin, self._store.pausing
        counted = {counts.stats.queue: counts for counts in admin.count_queues(session, only)}
        serving = admin.count_serving(session)
        paused = {} if pausing is None else {pause.queue: pause for pause in pausing.read(session)}
        nothing = {queue: QueueCounts(QueueStats(queue)) for queue in (*paused, *(serving or ()))}
        return [
            QueueOverview.of(counts, paused=paused.get(queue), nodes=None if serving is None else serving.get(queue, 0))
            for queue, counts in sorted((nothing | counted).items())
            if only in (None, queue)
        ]

    async def traffic(self, *, session: SessionOrConnection | None = None) -> tuple[int, int] | None:
        """Return how many messages were ever published and settled; None for a store in memory.

        The server counts them in its statistics, about a second late, those of transactions that were rolled back
        included, and from zero again after a crash: the differences of two looks are rates.

        Args:
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            published, settled = await operations.traffic() or (0, 0)

        """
        return await self._read(session, self._store.admin.count_traffic)
