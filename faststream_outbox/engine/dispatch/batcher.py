"""Decides which rows go into one call of the handler; rows that failed together come back in smaller calls."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.runtime.loop import let_others_run
from faststream_outbox.storage import OutboxRow, Retry, Settlement
from faststream_outbox.storage.clock import lease_now

# How many failed rows to remember with the size of their batch; older ones are judged by their deliveries.
_REMEMBERED: Final = 100_000


class Batcher:
    """Waits until there are rows for a whole call, or the first of them has waited for `max_wait_ms`.

    Rows stay in the ledger until the call begins, so that they can still be given back to other processes.
    """

    def __init__(self, ledger: Ledger, options: SubscriberOptions) -> None:
        self._ledger = ledger
        self.max_records = options.rows_per_call
        self.limits = BatchLimits(self.max_records, options.max_deliveries)
        self._max_wait = options.max_wait_ms / 1000
        self._stopped_waiting = False

    async def gather(self) -> list[OutboxRow]:
        """Wait for the rows of one call, and take them."""
        if self.max_records == 1:
            return [await self._ledger.take()]
        while (seconds := self._seconds_left()) is None or seconds > 0:
            await self._ledger.wait_for_arrivals(seconds)
            await let_others_run()  # so that the next claim is sent, and runs beside this call
        return self._ledger.take_waiting(self._count_fitting())

    def _seconds_left(self) -> float | None:
        first = self._ledger.first_waiting
        if first is None:
            return None
        if first.ordered or self._stopped_waiting or self._max_wait == 0:
            return 0.0
        if self._ledger.waiting >= self.limits.limit(first):
            return 0.0
        return first.claimed_at + self._max_wait - lease_now()

    def _count_fitting(self) -> int:
        """Count the waiting rows that fit into one call: from the first on, as many as each of them allows."""
        most, limit = self.max_records, self.limits.limit
        for count, row in enumerate(self._ledger.waiting_rows()):
            if row.entity_key is not None:
                return count or 1  # a run is a call by itself
            if (its := limit(row)) < most:
                most = its
            if count >= most:
                return count
        return self._ledger.waiting

    def cut(self, head: OutboxRow) -> None:
        """Shorten a run to as many rows as fit into one call."""
        most = self.max_records
        for count, held in enumerate(head.parts):
            most = min(most, self.limits.limit(held))
            if count >= most:
                self._ledger.cut_run(head, count)
                return

    def learn(self, settlements: Sequence[Settlement]) -> None:
        """Remember the rows of a call that failed, so that fewer of them go into the next call.

        A row that failed as the only one of its call stays alone: fresh rows would fail with it. A row that failed by
        its own verdict among others does not.
        """
        if self.max_records == 1:
            return
        self.limits.forget(settlement.lease.row_id for settlement in settlements)
        alone = len(settlements) == 1
        for settlement in settlements:
            if isinstance(outcome := settlement.outcome, Retry) and (alone or outcome.batch_size > 1):
                self.limits.failed(settlement.lease.row_id, outcome.batch_size)

    def stop_waiting(self) -> None:
        """Call the handler with the rows that are there, from now on: the subscriber is stopping."""
        self._stopped_waiting = True
        self._ledger.wake_takers()


class BatchLimits:
    """Halves the batch of rows whose call failed, until the row that is to blame fails alone.

    Only this process knows the size of a failed batch. For a row that failed in another process, each delivery counts
    as one halving: after nine deliveries at most, a row of a batch of 500 is alone.
    """

    def __init__(self, max_records: int, max_deliveries: int | None = None) -> None:
        self._most = max_records
        self._max_deliveries = max_deliveries
        # The size of the batch with which each row failed last, by row id.
        self._failed: OrderedDict[int, int] = OrderedDict()

    def limit(self, row: OutboxRow) -> int:
        """Return how many rows, itself included, may be in one call with a row."""
        if row.deliveries_count == 1 and not row.attempts_count and not row.suspect and row.id not in self._failed:
            return self._most  # the usual case first: a fresh row
        if self._most == 1 or row.suspect or self._delivered_too_often(row):
            return 1
        failed = self._failed.get(row.id)
        if failed is not None:
            return max(1, failed // 2)
        return max(1, self._most >> self._halvings(row))

    def is_given_up(self, row: OutboxRow) -> bool:
        """Return whether a row was delivered too often, and was alone once: before, another row may be to blame."""
        return self._delivered_too_often(row) and (self._most == 1 or row.suspect or not self._failed_among_others(row))

    def _delivered_too_often(self, row: OutboxRow) -> bool:
        return self._max_deliveries is not None and row.deliveries_count > self._max_deliveries

    def _failed_among_others(self, row: OutboxRow) -> bool:
        if row.id in self._failed:
            return self._failed[row.id] > 1
        return row.attempts_count > 0 and self._most >> (self._halvings(row) - 1) > 1

    @staticmethod
    def _halvings(row: OutboxRow) -> int:
        """Return the number of deliveries before this one; 0 for a row that has not failed."""
        return min(max(row.deliveries_count - 1, 1), 64) if row.attempts_count else 0

    def failed(self, row_id: int, count: int) -> None:
        """Remember that a row failed in a call with `count` rows."""
        self._failed[row_id] = count
        self._failed.move_to_end(row_id)
        if len(self._failed) > _REMEMBERED:
            self._failed.popitem(last=False)

    def forget(self, row_ids: Iterable[int]) -> None:
        """Forget rows that were settled, or that failed by their own verdict."""
        if self._failed:
            for row_id in row_ids:
                self._failed.pop(row_id, None)
