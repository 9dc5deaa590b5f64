"""Sends NOTIFY to other processes, one for all rows that were committed since the last."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.runtime.timeouts import within

# Seconds between two statements; what is announced in between shares the next. Ten milliseconds are not noticed.
SPACING: Final = 0.01
# In a steady stream a transaction that notifies by itself comes every `SPACING`, and does it for those before it. So a
# statement waits for one a little longer than that; the first after a quiet time does not.
_WAIT: Final = 1.5 * SPACING
_QUIET: Final = 0.25
# If that transaction has not committed after so many seconds, because it takes long or was rolled back, a statement of
# our own notifies for those before it.
_LOAN: Final = 0.1
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
        # Of these names, those that were lent once: they are sent.
        self._returned: set[str] = set()
        # When names were last sent, or lent.
        self._announced_at = -math.inf
        # When set, it ends the wait for a transaction that notifies by itself.
        self._later: asyncio.TimerHandle | None = None
        # Queues left to transactions that have not committed yet, and since when.
        self._loans: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._finishing = False
        self._wanted = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()

    def put(self, queues: Iterable[str], *, now: bool = False) -> None:
        """Announce these queues with the next statement; with `now`, wait for no transaction that does it."""
        self._queues.update(queues)
        if not self._queues:
            return
        self._all_sent.clear()
        if now or self._finishing or time.monotonic() >= self._announced_at + _QUIET:
            self._wanted.set()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(_WAIT, self._wanted.set)

    def lend(self, queue: str, *, new: bool = False) -> bool:
        """Leave a queue to a transaction that is about to notify of it; return False if it does not wait.

        The name comes back, and is sent, if the loan is not repaid soon. Call it in the thread of the event loop.

        Args:
            queue: The name of the queue.
            new: Whether the queue is to be announced although it does not wait here.

        """
        now = time.monotonic()
        if queue in self._queues and queue not in self._returned:
            self._announced_at = now
            self._queues.remove(queue)
            if not self._queues:
                self._want_nothing()
        elif not new:
            return False
        self._loans.setdefault(queue, now)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOAN, self._end_loans)
        return True

    def repay(self, queue: str) -> None:
        """End the loan of a queue: a transaction has notified of it, and so of all that had committed before."""
        self._loans.pop(queue, None)

    def _want_nothing(self) -> None:
        self._wanted.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _end_loans(self, *, all_of_them: bool = False) -> None:
        """Take back the names whose loans have lasted too long, and wait for the others."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        unpaid = [queue for queue, since in self._loans.items() if all_of_them or since + _LOAN <= now]
        for queue in unpaid:
            del self._loans[queue]
        if self._loans:
            wait = min(self._loans.values()) + _LOAN - now
            self._timer = asyncio.get_running_loop().call_later(wait, self._end_loans)
        self._returned.update(unpaid)
        self.put(unpaid, now=bool(unpaid))

    async def step(self) -> None:
        """Wait for names, send them, and pause so that others can gather."""
        await self._wanted.wait()
        queues, self._queues = self._queues, set()
        self._returned.clear()
        self._want_nothing()
        if queues:
            try:
                await within(_LIMIT, self._notify(sorted(queues)))
            except BaseException:
                self.put(queues, now=True)
                raise
            self._announced_at = time.monotonic()
        if not self._queues:
            self._all_sent.set()
        if queues:
            await asyncio.sleep(SPACING)

    async def finish(self, seconds: float) -> None:
        """Stop when all names are sent, or after `seconds`."""
        self._finishing = True
        self._end_loans(all_of_them=True)
        self._wanted.set()  # all may have been lent
        try:
            async with asyncio.timeout(seconds):
                await self._all_sent.wait()
        except TimeoutError as error:
            message = "Could not announce the last rows to other processes; they find the rows by polling."
            self._monitor.report(self.failure_event, message, error=error)
        await self.stop()
