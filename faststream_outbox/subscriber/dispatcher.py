"""Runs handlers: each worker takes a row, has it handled, and hands the outcome over."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from faststream_outbox.storage import Dead, OutboxRow, Outcome, Retry, Settlement
from faststream_outbox.subscriber.events import Report
from faststream_outbox.subscriber.ledger import Held, Ledger
from faststream_outbox.subscriber.loop import Loop

# Handles one row and says what became of it. It answers for its own failures; what it raises all the same is a bug.
Handle = Callable[[OutboxRow], Awaitable[Outcome]]

# When that happens the row is tried again, not in a tight loop.
_AFTER_A_BUG: Final = 1.0


class Worker(Loop):
    """One of the `max_workers` that handle rows side by side."""

    failure_event = "dispatch_failed"

    def __init__(
        self,
        ledger: Ledger,
        handle: Handle,
        settle: Callable[[Settlement], None],
        report: Report,
        *,
        max_deliveries: int | None,
    ) -> None:
        super().__init__(report)
        self._ledger = ledger
        self._handle = handle
        self._settle = settle
        self._max_deliveries = max_deliveries

    async def step(self) -> None:
        """Wait for a row and handle it."""
        held = await self._ledger.take()
        if held.expired:
            self._give_up(held)
            return
        if self._max_deliveries is not None and held.row.deliveries_count > self._max_deliveries:
            self._settle(Settlement(held.lease, Dead("max_deliveries")))
            return
        try:
            outcome = await self._handle(held.row)
        except asyncio.CancelledError:
            # Stopped in the middle of it: free at once, rather than when its lease runs out.
            self._settle(Settlement(held.lease, self._again(held.row, 0.0, attempts=0)))
            raise
        except BaseException:
            self._settle(Settlement(held.lease, self._again(held.row, _AFTER_A_BUG, attempts=1)))
            raise
        self._settle(Settlement(held.lease, outcome))

    @staticmethod
    def _again(row: OutboxRow, delay: float, *, attempts: int) -> Retry:
        return Retry(delay, row.attempts_count + attempts)

    def _give_up(self, held: Held) -> None:
        self._ledger.strike([held.lease])
        self._report(
            "lease_lost",
            f"Row {held.row.id} waited here for longer than its lease; it is left to whoever claims it next.",
            level=logging.WARNING,
            phase="dispatch",
            row_id=held.row.id,
            queue=held.row.queue,
            deliveries_count=held.row.deliveries_count,
        )


class Dispatcher:
    """All workers of a subscriber."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers

    def start(self) -> None:
        """Let the workers begin."""
        for worker in self._workers:
            worker.start()

    async def stop(self) -> None:
        """Stop all workers, in the middle of a handler if need be."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    @property
    def alive(self) -> bool:
        """Whether every worker is at work."""
        return all(worker.alive for worker in self._workers)
