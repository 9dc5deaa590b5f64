"""Outcomes of one kind that wait to be written together, and how long they may wait."""

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence

from faststream_outbox.storage import Settlement
from faststream_outbox.storage.contract import MAX_BYTES


class SettleBuffer:
    """Is due when it holds a whole batch, or when its oldest outcome has waited for `flush_interval` seconds.

    A batch is whole with `batch_size` outcomes, or as soon as the answers to be written with them have `MAX_BYTES`: a
    statement of a gigabyte is refused by Postgres, each time.
    """

    def __init__(self, batch_size: int, flush_interval: float) -> None:
        self._batch_size = batch_size
        self._flush_interval = flush_interval
        # Two queues of the same length instead of one of pairs: the garbage collector would visit every pair.
        self._waiting: deque[Settlement] = deque()
        self._since: deque[float] = deque()
        self._output_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, settlements: Iterable[Settlement]) -> None:
        """Add outcomes; they wait from now on."""
        for each in settlements:
            self._waiting.append(each)
            self._output_bytes += each.output_bytes
        self._since.extend([time.monotonic()] * (len(self._waiting) - len(self._since)))

    def put_back(self, settlements: Sequence[Settlement]) -> None:
        """Add outcomes that could not be written at the front; they are due at once."""
        self._waiting.extendleft(reversed(settlements))
        self._since.extendleft([-math.inf] * len(settlements))
        self._output_bytes += sum([each.output_bytes for each in settlements])

    @property
    def due_at(self) -> float:
        """Return when the next batch is due, on the monotonic clock."""
        if not self._waiting:
            return math.inf
        if len(self._waiting) >= self._batch_size or self._output_bytes >= MAX_BYTES:
            return -math.inf
        return self._since[0] + self._flush_interval

    def take(self) -> list[Settlement]:
        """Remove and return a batch, the oldest first; it may be larger, because a group is never divided."""
        batch: list[Settlement] = []
        group, size = None, 0
        while self._waiting:
            full = len(batch) >= self._batch_size or size >= MAX_BYTES
            if full and (group is None or self._waiting[0].group != group):
                break
            batch.append(each := self._waiting.popleft())
            group, size = each.group, size + each.output_bytes
        for _ in batch:
            self._since.popleft()
        self._output_bytes -= size
        return batch
