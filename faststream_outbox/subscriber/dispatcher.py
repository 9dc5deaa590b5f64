"""Runs handlers: each worker takes rows, has them handled in one call, and hands the outcomes over."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from faststream_outbox.storage import Dead, OutboxRow, Retry, Settlement
from faststream_outbox.subscriber.gatherer import Gatherer
from faststream_outbox.subscriber.handling import Handle, Handled
from faststream_outbox.subscriber.journal import Journal
from faststream_outbox.subscriber.ledger import Held, Ledger
from faststream_outbox.subscriber.loop import Loop
from faststream_outbox.subscriber.pace import Pace
from faststream_outbox.subscriber.settler import Settler

# When a call ends in a bug its rows are tried again, not in a tight loop.
_AFTER_A_BUG: Final = 1.0


class Worker(Loop):
    """One of the `max_workers` that handle rows side by side."""

    failure_event = "dispatch_failed"
    task = "Handling a row"

    def __init__(
        self,
        ledger: Ledger,
        gatherer: Gatherer,
        handle: Handle,
        settler: Settler,
        *,
        journal: Journal,
        pace: Pace,
        interruptible: bool = True,
    ) -> None:
        super().__init__(journal.monitor)
        self._ledger = ledger
        self._gatherer = gatherer
        self._handle = handle
        self._settler = settler
        self._journal = journal
        self._pace = pace
        self._interruptible = interruptible

    async def step(self) -> None:
        """Wait for rows and handle them."""
        gathered, now = await self._gatherer.gather(), time.monotonic()
        rows = [held for held in gathered if self._may_run(held, now)]
        if rows:
            await self._run_handler(rows)

    def _may_run(self, held: Held, now: float) -> bool:
        if now >= held.expires_at:
            self._ledger.strike([held.lease])
            self._journal.lost(held, "dispatch")
            return False
        if self._gatherer.is_given_up(held):
            self._settler.put(Settlement(held.lease, Dead("max_deliveries")))
            return False
        return True

    async def _run_handler(self, rows: Sequence[Held]) -> None:
        empty = self._gatherer.max_records - len(rows)
        self._ledger.take_places(empty)
        began_at = time.monotonic()
        for held in rows:
            held.began_at = began_at
        self._journal.dispatched(rows)
        try:
            handled = await self._handle([held.row for held in rows])
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError) and self._stopping
            # What cannot be interrupted still runs: its rows are left to their leases, lest they run twice at a time.
            if self._interruptible or not stopped:
                self._conclude(Handled([Settlement(h.lease, _again(h.row, error, stopped=stopped)) for h in rows]))
            raise
        finally:
            ended_at = time.monotonic()
            for held in rows:
                held.ended_at = ended_at
            self._pace.observe(rows[0].duration / len(rows))
            self._ledger.free_places(empty)
        self._conclude(handled)

    def _conclude(self, handled: Handled) -> None:
        self._gatherer.learn(handled.settlements)
        self._settler.take_over(handled)


def _again(row: OutboxRow, error: BaseException, *, stopped: bool) -> Retry:
    if stopped:
        # In the middle of it: no attempt, and free at once, rather than when its lease runs out.
        return Retry(0.0, row.attempts_count, error=error)
    return Retry(_AFTER_A_BUG, row.attempts_count + 1, error=error)


class Dispatcher:
    """All workers of a subscriber."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers
        self._interrupting = False

    def start(self) -> None:
        """Let the workers begin."""
        for worker in self._workers:
            worker.start()

    async def stop(self) -> None:
        """Stop all workers, in the middle of a handler if need be."""
        self._interrupting = True
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    @property
    def interrupting(self) -> bool:
        """Whether handlers are being cancelled, because the time for draining is over."""
        return self._interrupting

    @property
    def alive(self) -> bool:
        """Whether every worker is at work."""
        return all(worker.alive for worker in self._workers)
