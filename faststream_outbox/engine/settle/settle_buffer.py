"""Outcomes of one kind that wait to be written together, and how long they may wait."""

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence

from faststream_outbox.storage import Settlement


class SettleBuffer:
    """Is due when it holds a whole batch, or when its oldest outcome has waited for `flush_interval` seconds."""

    def __init__(self, batch_size: int, flush_interval: float) -> None:
        self._batch_size = batch_size
        self._flush_interval = flush_interval
        # Two queues of the same length instead of one of pairs: the garbage collector would visit every pair.
        self._waiting: deque[Settlement] = deque()
        self._since: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, settlements: Iterable[Settlement]) -> None:
        """Add outcomes; they wait from now on."""
        self._waiting.extend(settlements)
        self._since.extend([time.monotonic()] * (len(self._waiting) - len(self._since)))

    def put_back(self, settlements: Sequence[Settlement]) -> None:
        """Add outcomes that could not be written at the front; they are due at once."""
        self._waiting.extendleft(reversed(settlements))
        self._since.extendleft([-math.inf] * len(settlements))

    @property
    def due_at(self) -> float:
        """Return when the next batch is due, on the monotonic clock."""
        if not self._waiting:
            return math.inf
        if len(self._waiting) >= self._batch_size:
            return -math.inf
        return self._since[0] + self._flush_interval

    def take(self) -> list[Settlement]:
        """Remove and return a batch, the oldest first; it may be larger, because a group is never divided."""
        count = min(self._batch_size, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(count)]
        while self._waiting and batch[-1].group is not None and self._waiting[0].group == batch[-1].group:
            batch.append(self._waiting.popleft())
        for _ in batch:
            self._since.popleft()
        return batch
