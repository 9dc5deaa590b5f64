"""Warns of queues that several subscribers of a broker read, and of rows that nobody it knows reads."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage import Store
from faststream_outbox.storage.contract import MOST_COUNTED
from faststream_outbox.subscriber.usecase import OutboxSubscriber
from faststream_outbox.wakeup.wakeup import Wakeup

# How long a process that reads a queue may take to claim a row before we look: its longest poll interval, by default.
_FIRST_WAIT: Final = 10.0
# Services may share a table, and each is notified of all queues: it looks more and more rarely.
_LONGEST_WAIT: Final = 3600.0
# A look takes milliseconds; one that takes longer is not worth a slow start.
_LONGEST_LOOK: Final = 3.0


def warn_of_shared_queues(subscribers: Sequence[OutboxSubscriber], monitor: Monitor, reported: set[str]) -> None:
    """Log each queue that several subscribers read: users of other brokers expect that each gets every message.

    Queues in `reported` were logged before; new ones are added to it.
    """
    names: dict[str, list[str]] = {}
    for subscriber in subscribers:
        for queue in subscriber.queues:
            names.setdefault(queue, []).append(subscriber.specification.call_name)
    for queue in sorted(names.keys() - reported):
        readers = sorted(names[queue])
        if len(readers) > 1:
            reported.add(queue)
            message = (
                f"{len(readers)} subscribers of this broker read queue {queue!r} ({', '.join(readers)}): each message "
                "goes to one of them only. Publish to a queue for each of them, or give one subscriber all handlers, "
                "with filters."
            )
            monitor.report("queue_shared", message, queue=queue, subscribers=readers)


class UnservedQueues(Loop):
    """Looks for due rows of queues that nobody in this process reads, and logs each such queue once.

    `reported` are the queues that were logged before; new ones are added to it. It looks when the broker or one of its
    relays starts, and some time after a notification of such a queue, on the listening connection.
    """

    failure_event = "unserved_failed"
    task = "Looking for rows that nobody reads"

    def __init__(
        self,
        store: Store,
        wakeup: Wakeup,
        known: Callable[[], Collection[str]],
        monitor: Monitor,
        *,
        reported: set[str],
        first_wait: float = _FIRST_WAIT,
    ) -> None:
        super().__init__(monitor)
        self._store = store
        self._wakeup = wakeup
        self._known = known
        self._wait = first_wait
        self._noticed = asyncio.Event()
        self._reported = reported
        self._unsubscribe: Callable[[], None] = lambda: None

    async def look_at_start(self) -> None:
        """Look on a connection from the pool, which subscribers take afterwards."""
        try:
            self._report(await within(_LONGEST_LOOK, self._look()))
        except Exception:  # noqa: BLE001 - claims will fail too, and say so
            self._noticed.set()  # look again later

    async def _look(self) -> Mapping[str, int]:
        async with self._store.connect() as lane:
            return await lane.unserved(self._known())

    def start(self) -> None:
        """Begin to look when there are new rows of other queues."""
        self._unsubscribe = self._wakeup.subscribe_to_others(self._noticed.set)
        super().start()

    async def stop(self) -> None:
        """Look no more."""
        self._unsubscribe()
        await super().stop()

    async def step(self) -> None:
        """Wait for a notification, give others time to claim the rows, and look."""
        await self._noticed.wait()
        await asyncio.sleep(self._wait)
        self._wait = min(self._wait * 2, _LONGEST_WAIT)
        self._noticed.clear()
        try:
            self._report(await within(_LONGEST_LOOK, self._wakeup.unserved(self._known())))
        except Exception:  # noqa: BLE001 - the listener reports what is wrong with its connection
            self._noticed.set()

    def _report(self, found: Mapping[str, int]) -> None:
        new = {queue: rows for queue, rows in found.items() if queue not in self._reported}
        if not new:
            return
        self._reported.update(new)
        counts = ", ".join(
            f"{queue!r} ({'at least ' if rows >= MOST_COUNTED else ''}{rows})" for queue, rows in new.items()
        )
        message = (
            f"Rows are due in queues that no subscriber and no relay of this broker reads: {counts}. They wait until "
            "one does. Is a name misspelled, or the prefix of a router missing? If another service reads them, all is "
            "well."
        )
        self._monitor.report(
            "queue_unserved", message, level=logging.WARNING, queue=",".join(new), rows=sum(new.values())
        )
