"""Gathers the rows of one call: what is there, and what comes in time."""

import time
from collections.abc import Sequence

from faststream_outbox.engine.dispatch.batch_limits import BatchLimits
from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.runtime.loop import give_way
from faststream_outbox.storage import OutboxRow, Retry, Settlement


class Batcher:
    """Waits until there are rows for a whole call, or the first of them has waited for `max_wait` seconds.

    Rows stay in the ledger until the call begins, so that others may have them meanwhile.
    """

    def __init__(self, ledger: Ledger, *, max_records: int, max_wait: float, max_deliveries: int | None = None) -> None:
        self._ledger = ledger
        self._limits = BatchLimits(max_records, max_deliveries)
        self.max_records = max_records
        self._max_wait = max_wait
        self._hurrying = False

    def hurry(self) -> None:
        """Wait for no company from now on: the subscriber is stopping."""
        self._hurrying = True
        self._ledger.stir()

    def is_given_up(self, held: OutboxRow) -> bool:
        """Tell whether a row was delivered too often to be run once more."""
        return self._limits.is_given_up(held)

    def learn(self, settlements: Sequence[Settlement]) -> None:
        """Take note of what became of a call's rows: those that failed together meet fewer next time.

        What was a call by itself and failed stays by itself: fresh rows would fail with it. Not so what failed by its
        own verdict among others.
        """
        if self.max_records == 1:
            return
        self._limits.forget(settlement.lease.row_id for settlement in settlements)
        alone = len(settlements) == 1
        for settlement in settlements:
            if isinstance(outcome := settlement.outcome, Retry) and (alone or outcome.batch_size > 1):
                self._limits.failed(settlement.lease.row_id, outcome.batch_size)

    async def gather(self) -> list[OutboxRow]:
        """Wait for rows, and take them."""
        if self.max_records == 1:
            return [await self._ledger.take()]
        while (seconds := self._seconds_left()) is None or seconds > 0:
            await self._ledger.wait_for_arrivals(seconds)
            await give_way()  # so that the next claim is sent, and runs beside this call
        return self._ledger.take_waiting(self._fitting())

    def cut(self, head: OutboxRow) -> None:
        """Shorten a run to as many rows as may be handled in one call."""
        most = self.max_records
        for count, held in enumerate(head.parts):
            most = min(most, self._limits.limit(held))
            if count >= most:
                self._ledger.cut(head, count)
                return

    def _seconds_left(self) -> float | None:
        first = self._ledger.first_waiting
        if first is None:
            return None
        if first.ordered or self._hurrying or self._max_wait == 0 or self._ledger.waiting >= self._limits.limit(first):
            return 0.0
        return first.claimed_at + self._max_wait - time.monotonic()

    def _fitting(self) -> int:
        """Count the rows that may go together: those that follow each other, as many as each of them allows."""
        most, limit = self.max_records, self._limits.limit
        for count, row in enumerate(self._ledger.waiting_rows()):
            if row.entity_key is not None:
                return count or 1  # a run is a call by itself
            if (its := limit(row)) < most:
                most = its
            if count >= most:
                return count
        return self._ledger.waiting
