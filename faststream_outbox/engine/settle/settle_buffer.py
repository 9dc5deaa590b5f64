"""Outcomes of one kind that wait to be written together, and how long they may wait."""

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence

from faststream_outbox.storage.ordering import AnySettlement


class SettleBuffer:
    """Its turn comes when there is a batch, or when its oldest outcome has waited for `flush_interval` seconds."""

    def __init__(self, *, batch_size: int, flush_interval: float) -> None:
        self._batch_size = batch_size
        self._flush_interval = flush_interval
        # Two queues of one length, not one of pairs: the garbage collector would walk over every pair.
        self._waiting: deque[AnySettlement] = deque()
        self._since: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, settlements: Iterable[AnySettlement]) -> None:
        """Put outcomes in; their age counts from now."""
        self._waiting.extend(settlements)
        self._since.extend([time.monotonic()] * (len(self._waiting) - len(self._since)))

    def put_back(self, settlements: Sequence[AnySettlement]) -> None:
        """Put outcomes back that could not be written; they come first and have waited long enough."""
        self._waiting.extendleft(reversed(settlements))
        self._since.extendleft([-math.inf] * len(settlements))

    @property
    def due_at(self) -> float:
        """When its turn comes, on the monotonic clock."""
        if not self._waiting:
            return math.inf
        if len(self._waiting) >= self._batch_size:
            return -math.inf
        return self._since[0] + self._flush_interval

    def take(self) -> list[AnySettlement]:
        """Take out a batch, the oldest first; a group is not torn apart, so it may be more."""
        count = min(self._batch_size, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(count)]
        while self._waiting and batch[-1].group is not None and self._waiting[0].group == batch[-1].group:
            batch.append(self._waiting.popleft())
        for _ in batch:
            self._since.popleft()
        return batch
