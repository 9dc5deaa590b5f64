"""What a relay has done, and what it has before it: counted from the events of its outbox."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from faststream_outbox.storage import QueueStats

# A rate over fewer seconds is restless, over more it is late.
_WINDOW: Final = 5


class Figures:
    """A metrics recorder that counts, for the queues of one relay."""

    def __init__(self, queues: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.queues = tuple(queues)
        self.relayed: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.backlog: dict[str, QueueStats] = {}
        # Whether the time for draining was over before all was drained.
        self.cut_short = False
        self._clock = clock
        self._began_at = clock()
        self._counted_at: float | None = None
        self._seconds: Counter[tuple[str, int]] = Counter()

    def __call__(self, event: str, tags: Mapping[str, Any]) -> None:
        """Take note of an event."""
        queue = tags.get("queue", "")
        match event:
            case "acked":
                self.relayed[queue] += 1
                self._seconds[queue, int(self._clock())] += 1
            case "nacked_retried":
                self.retried[queue] += 1
            case "nacked_terminal":
                self.refused[queue] += 1
            case "backlog":
                self._counted_at = self._clock()
                if queue in self.queues:
                    self.backlog[queue] = QueueStats(**{name: tags[name] for name in QueueStats.__dataclass_fields__})
            case "drain_timeout":
                self.cut_short = True

    def per_second(self, *queues: str) -> float:
        """Tell how many rows of some queues, or of all, were relayed in one of the last seconds."""
        now = self._clock()
        for old in [each for each in self._seconds if each[1] < int(now) - _WINDOW]:
            del self._seconds[old]
        wanted = queues or self.queues
        lately = sum(count for (queue, second), count in self._seconds.items() if queue in wanted and second < int(now))
        return lately / min(_WINDOW, max(1.0, now - self._began_at))

    @property
    def counted_ago(self) -> float | None:
        """How many seconds ago the rows of the tables were counted."""
        return None if self._counted_at is None else self._clock() - self._counted_at

    @property
    def done(self) -> tuple[int, int, int]:
        """How many rows were relayed, tried again, and refused: what changes when something happens."""
        return self.relayed.total(), self.retried.total(), self.refused.total()

    def as_dict(self) -> dict[str, Any]:
        """Tell all of it, for machines."""
        relayed, retried, refused = self.done
        return {
            "relayed": relayed,
            "per_second": round(self.per_second(), 1),
            "retried": retried,
            "refused": refused,
            "lag_seconds": self.lag,
            "queues": {queue: self._queue_as_dict(queue) for queue in self.queues},
        }

    @property
    def lag(self) -> float | None:
        """For how long the oldest row has been due that is ready or in hand; none where there is no such row."""
        return max((lag for each in self.backlog.values() if (lag := _lag(each)) is not None), default=None)

    def _queue_as_dict(self, queue: str) -> dict[str, Any]:
        told: dict[str, Any] = {"relayed": self.relayed[queue], "per_second": round(self.per_second(queue), 1)}
        if stats := self.backlog.get(queue):
            told |= {
                "ready": stats.ready,
                "lag_seconds": _lag(stats),
                "scheduled": stats.scheduled,
                "in_flight": stats.in_flight,
                "blocked": stats.blocked,
                "blocked_keys": stats.blocked_keys,
                "parked_keys": stats.parked_keys,
                "dead": stats.dead,
            }
        return told


def _lag(stats: QueueStats) -> float | None:
    return None if stats.oldest_due_age is None else round(stats.oldest_due_age, 3)
