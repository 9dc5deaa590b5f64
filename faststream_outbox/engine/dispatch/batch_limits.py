"""How many rows one call may take: all it can, and fewer of those that have failed together."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from faststream_outbox.storage import OutboxRow

# Of how many rows to remember with how many they failed; those before them are judged by their attempts.
_REMEMBERED: Final = 100_000


class BatchLimits:
    """Halves the company of rows whose call failed, until the one that is to blame fails alone.

    Only this process knows how many they were. Where it does not, each delivery of a row that has failed counts for a
    halving, so that it is alone after as many as it takes to halve the largest call.
    """

    def __init__(self, max_records: int, max_deliveries: int | None = None) -> None:
        self._most = max_records
        self._max_deliveries = max_deliveries
        self._failed: OrderedDict[int, int] = OrderedDict()

    def limit(self, row: OutboxRow) -> int:
        """Tell with how many rows, itself included, a row may be handled."""
        if row.deliveries_count == 1 and not row.attempts_count and not row.suspect and row.id not in self._failed:
            return self._most  # most rows are like that: nobody has had them before
        if self._most == 1 or row.suspect or self._delivered_too_often(row):
            return 1
        failed = self._failed.get(row.id)
        if failed is not None:
            return max(1, failed // 2)
        return max(1, self._most >> self._halvings(row))

    def is_given_up(self, row: OutboxRow) -> bool:
        """Tell whether a row was delivered too often; not before it was alone, because others may be to blame."""
        return self._delivered_too_often(row) and (self._most == 1 or row.suspect or not self._in_company(row))

    def _delivered_too_often(self, row: OutboxRow) -> bool:
        return self._max_deliveries is not None and row.deliveries_count > self._max_deliveries

    def _in_company(self, row: OutboxRow) -> bool:
        """Whether a row had company when it last failed, for all we know."""
        if row.id in self._failed:
            return self._failed[row.id] > 1
        return row.attempts_count > 0 and self._most >> (self._halvings(row) - 1) > 1

    @staticmethod
    def _halvings(row: OutboxRow) -> int:
        """Count the deliveries before this one, of a row that has failed."""
        return min(max(row.deliveries_count - 1, 1), 64) if row.attempts_count else 0

    def failed(self, row_id: int, count: int) -> None:
        """Take note that a call failed that had so many rows, this one among them."""
        self._failed[row_id] = count
        self._failed.move_to_end(row_id)
        if len(self._failed) > _REMEMBERED:
            self._failed.popitem(last=False)

    def forget(self, row_ids: Iterable[int]) -> None:
        """Forget rows that are settled, or failed by a verdict of their own."""
        if self._failed:
            for row_id in row_ids:
                self._failed.pop(row_id, None)
