"""Runs handlers: each worker takes a row, has it handled, and hands the outcome over."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from faststream_outbox.storage import Dead, OutboxRow, Outcome, Retry, Settlement
from faststream_outbox.subscriber.journal import Journal
from faststream_outbox.subscriber.ledger import Ledger
from faststream_outbox.subscriber.loop import Loop
from faststream_outbox.subscriber.pace import Pace

# Handles one row and says what became of it. It answers for its own failures; what it raises all the same is a bug.
Handle = Callable[[OutboxRow], Awaitable[Outcome]]

# When that happens the row is tried again, not in a tight loop.
_AFTER_A_BUG: Final = 1.0


class Worker(Loop):
    """One of the `max_workers` that handle rows side by side."""

    failure_event = "dispatch_failed"
    task = "Handling a row"

    def __init__(
        self,
        ledger: Ledger,
        handle: Handle,
        settle: Callable[[Settlement], None],
        journal: Journal,
        pace: Pace,
        *,
        max_deliveries: int | None,
        interruptible: bool = True,
    ) -> None:
        super().__init__(journal.monitor)
        self._ledger = ledger
        self._handle = handle
        self._settle = settle
        self._journal = journal
        self._pace = pace
        self._max_deliveries = max_deliveries
        self._interruptible = interruptible

    async def step(self) -> None:
        """Wait for a row and handle it."""
        held = await self._ledger.take()
        if held.expired:
            self._ledger.strike([held.lease])
            self._journal.lost(held, "dispatch")
            return
        if self._max_deliveries is not None and held.row.deliveries_count > self._max_deliveries:
            self._settle(Settlement(held.lease, Dead("max_deliveries")))
            return
        held.begin()
        self._journal.dispatched(held)
        try:
            outcome = await self._handle(held.row)
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError) and self._stopping
            # What cannot be interrupted still runs: its row is left to its lease, lest it runs twice at the same time.
            if self._interruptible or not stopped:
                self._settle(Settlement(held.lease, _again(held.row, error, stopped=stopped)))
            raise
        finally:
            held.end()
            self._pace.observe(held.duration)
        self._settle(Settlement(held.lease, outcome))


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
