"""The status of a running relay: its state, its counts, and the lines of progress in the log."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, Literal

from faststream_outbox.cli.addresses import show_address
from faststream_outbox.cli.secrets import hide
from faststream_outbox.relay import Relay
from faststream_outbox.relay.destinations import NAMED
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import QueueStats

# Over fewer seconds a rate jumps, over more it lags behind.
_RATE_SECONDS: Final = 5
# How many of the queues that wait a line of progress names in its text; its fields have all.
_NAMED_QUEUES: Final = 5
_SHOWN_STATS: Final = ("ready", "scheduled", "in_flight", "blocked", "blocked_keys", "parked_keys", "dead", "capped")


class Status:
    """The state of a relay and its figures, for the view, the log and the health endpoint.

    It is the metrics recorder of the outbox, and counts the rows of the relay's queues.
    """

    # Set when the relay is made, which needs the outbox, which needs its recorder.
    relay: Relay
    # How this node shares, claims and sends rows. It does not change, so the lines of progress leave it out.
    settings: Mapping[str, Any]

    def __init__(self, routes: Mapping[str, str], to: str) -> None:
        # By queue, as it was written: a destination, or header:name.
        self.routes = dict(routes)
        self.queues = tuple(routes)
        # The address of the broker, without its password.
        self.to = show_address(to)
        self.phase: Literal["starting", "running", "stopping"] = "starting"
        # Whether `graceful_timeout` ended before all rows were settled.
        self.drain_timed_out = False
        self.relayed: Counter[str] = Counter()
        self.backlog: dict[str, QueueStats] = {}
        self._retried: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._started_at = time.monotonic()
        # When the rows of the tables were counted, by the monotonic clock.
        self.counted_at: float | None = None
        self._relayed_by_second: Counter[tuple[str, int]] = Counter()

    def __call__(self, event: str, tags: Mapping[str, Any]) -> None:
        """Count an event of the outbox."""
        queue = tags.get("queue", "")
        match event:
            case "acked":
                self.relayed[queue] += 1
                self._relayed_by_second[queue, int(time.monotonic())] += 1
            case "nacked_retried":
                self._retried[queue] += 1
            case "nacked_terminal":
                self._refused[queue] += 1
            case "backlog":
                self.counted_at = time.monotonic()
                if queue in self.queues:
                    self.backlog[queue] = QueueStats(**{name: tags[name] for name in QueueStats.__dataclass_fields__})
            case "drain_timeout":
                self.drain_timed_out = True

    def per_second(self, *queues: str) -> float:
        """Return the rows of some queues, or of all, that were relayed per second lately."""
        now = time.monotonic()
        for old in [each for each in self._relayed_by_second if each[1] < int(now) - _RATE_SECONDS]:
            del self._relayed_by_second[old]
        wanted = queues or self.queues
        counts = self._relayed_by_second.items()
        lately = sum(count for (queue, second), count in counts if queue in wanted and second < int(now))
        return lately / min(_RATE_SECONDS, max(1.0, now - self._started_at))

    @property
    def totals(self) -> tuple[int, int, int]:
        """The rows that were relayed, retried and refused."""
        return self.relayed.total(), self._retried.total(), self._refused.total()

    def outcomes(self, queue: str) -> dict[str, int]:
        """Return the rows of a queue by what became of them; a row that is retried counts each time."""
        return {"relayed": self.relayed[queue], "retried": self._retried[queue], "refused": self._refused[queue]}

    @property
    def lag(self) -> float | None:
        """How long the oldest row has been due that is ready or in flight; None if there is no such row."""
        return max((lag for each in self.backlog.values() if (lag := _lag(each)) is not None), default=None)

    @property
    def state(self) -> Literal["starting", "running", "paused", "stopping"]:
        """The phase, or "paused" while the broker is down."""
        return "paused" if self.phase != "stopping" and self.relay.down else self.phase

    @property
    def reason(self) -> str:
        """Why the relay is paused."""
        return hide(str(self.relay.pause_reason or ""))

    @property
    def description(self) -> str:
        """The state, with the reason of a pause, or the destinations that accept nothing."""
        if self.state == "paused":
            return f"paused: the broker is down: {self.reason}"
        names = [*self.paused_destinations]
        if others := len(self.relay.paused_destinations) - len(names):
            names.append(f"{others:,} others")
        return f"{self.state}: nothing is accepted by {', '.join(names)}" if names else self.state

    @property
    def paused_destinations(self) -> dict[str, str]:
        """The first destinations that accept nothing, each with the reason; there may be as many as keys."""
        first = islice(self.relay.paused_destinations.items(), NAMED)
        return {name: hide(str(why)) for name, why in first}

    def as_dict(self) -> dict[str, Any]:
        """Return the state and all figures, for JSON."""
        relayed, retried, refused = self.totals
        return {
            "state": self.state,
            "to": self.to,
            "relayed": relayed,
            "per_second": round(self.per_second(), 1),
            "retried": retried,
            "refused": refused,
            "lag_seconds": self.lag,
            "queues": {queue: self._queue_as_dict(queue) for queue in self.queues},
            **({"reason": self.reason} if self.state == "paused" else {}),
            "paused_destinations": self.paused_destinations,
            "paused_destinations_count": len(self.relay.paused_destinations),
        }

    def waiting(self) -> list[str]:
        """Return for each queue with rows or keys that wait what waits, in words."""
        return [f"{queue}: {', '.join(parts)}" for queue in self.queues if (parts := self._waiting(queue))]

    def _waiting(self, queue: str) -> list[str]:
        paused = self.relay.paused_queues.get(queue)
        parts = [] if paused is None else [f"paused {hide(paused)}"]
        if (stats := self.backlog.get(queue)) is None:
            return parts
        if stats.oldest_due_age is not None:
            parts.append(f"lag {stats.oldest_due_age:,.1f} s")
        counts = {"in flight": stats.in_flight, "blocked keys": stats.blocked_keys, "parked keys": stats.parked_keys}
        return parts + [f"{count:,} {name}" for name, count in counts.items() if count]

    def _queue_as_dict(self, queue: str) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "route": self.routes[queue],
            **self.outcomes(queue),
            "per_second": round(self.per_second(queue), 1),
            # By whom, until when and why an operator paused the queue.
            "paused": self.relay.paused_queues.get(queue),
        }
        if stats := self.backlog.get(queue):
            figures |= {name: getattr(stats, name) for name in _SHOWN_STATS}
            figures["lag_seconds"] = _lag(stats)
        return figures


def _lag(stats: QueueStats) -> float | None:
    return None if stats.oldest_due_age is None else round(stats.oldest_due_age, 3)


class ProgressLines(Loop):
    """Logs the figures at an interval, if they have changed or rows wait."""

    failure_event = "progress_failed"
    task = "Logging the progress"

    def __init__(self, status: Status, monitor: Monitor, *, interval: float) -> None:
        super().__init__(monitor)
        self._status = status
        self._interval = interval
        self._logged: object = ("running", (0, 0, 0), None, {})

    async def step(self) -> None:
        """Wait for the interval, then log."""
        await asyncio.sleep(self._interval)
        # The lag grows while rows wait, so that they are logged again.
        current = (self._status.state, self._status.totals, self._status.lag, self._status.relay.paused_queues)
        if current == self._logged:
            return
        self._logged = current
        figures = self._status.as_dict()
        message = f"{figures['relayed']:,} rows relayed, {figures['per_second']:,.0f} per second."
        if waiting := self._status.waiting():
            shown = waiting[:_NAMED_QUEUES] + (["…"] if len(waiting) > _NAMED_QUEUES else [])
            message += f" Waiting: {'; '.join(shown)}."
        self._monitor.report("relay_progress", message, level=logging.INFO, **figures)
