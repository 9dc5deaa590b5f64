"""What the pages of one console share: the operations, the rules, and what was seen while a page was watched."""

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from faststream_outbox.operations import (
    ActResult,
    Count,
    DeadLetter,
    Finding,
    Message,
    OutboxOperations,
    Progress,
    QueueOverview,
)

Redact = Callable[[Any], Any]

# A point every two seconds: two minutes of history.
_POINTS: Final = 60
# Samples closer than this replace the last one: several pages that are opened at once are one point.
_CLOSEST: Final = 0.9
# The audit keeps what was done; jobs are for those who look at the result.
_JOBS: Final = 100


def depth_of(queue: QueueOverview) -> int:
    """Return how many messages a queue has."""
    parts = (queue.ready, queue.in_flight, queue.expired, queue.scheduled, queue.blocked)
    return sum(each.number for each in parts)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a look at all queues found."""

    at: float
    depths: dict[str, int]
    published: int | None = None
    settled: int | None = None


@dataclass
class History:
    """The last samples; kept in this process, and only while a page is watched."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_POINTS))

    def add(self, queues: Iterable[QueueOverview], traffic: tuple[int, int] | None) -> None:
        """Keep what a look found."""
        depths = {each.queue: depth_of(each) for each in queues}
        published, settled = traffic or (None, None)
        sample = Sample(time.monotonic(), depths, published, settled)
        if self.samples and sample.at - self.samples[-1].at < _CLOSEST:
            self.samples.pop()
        self.samples.append(sample)

    def depths(self, queue: str) -> list[float]:
        """Return how many messages a queue had, the newest last."""
        return [float(each.depths.get(queue, 0)) for each in self.samples]

    def rates(self) -> tuple[list[float], list[float]]:
        """Return how many messages were published and settled per second, between each two samples."""
        into, out = list[float](), list[float]()
        samples = list(self.samples)
        for before, after in itertools.pairwise(samples):
            if None in (before.published, after.published, before.settled, after.settled):
                continue
            seconds = after.at - before.at
            # Counters of the server start at zero after a crash.
            into.append(max(0.0, (after.published or 0) - (before.published or 0)) / seconds)
            out.append(max(0.0, (after.settled or 0) - (before.settled or 0)) / seconds)
        return into, out


@dataclass(frozen=True, slots=True)
class Examined:
    """What the doctor found, and when."""

    findings: list[Finding]
    at: float

    @property
    def age(self) -> float:
        """How many seconds ago."""
        return time.monotonic() - self.at


@dataclass
class Job:
    """An act that runs, or has ended."""

    action: str
    title: str
    # What it acts on, such as "dead letter"; and the page that shows what is left of it.
    noun: str
    back: str
    user: str
    reason: str
    total: Count
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    progress: Progress | None = None
    result: ActResult | None = None
    error: str | None = None
    stopped: bool = False
    # The entry of the audit; of an act that was stopped, too.
    audit_id: int | None = None
    # What the audit says that an act on rows is for, and the form that does the rest of it.
    target: dict[str, Any] = field(default_factory=dict)
    form: dict[str, str] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        """Whether the act has not ended."""
        return self.task is not None and not self.task.done()

    @property
    def left_out(self) -> int:
        """How many rows were left out; the result names the first 1,000 of them."""
        if self.progress is not None:
            return self.progress.skipped
        return 0 if self.result is None else len(self.result.skipped)


def show_as_it_is(row: Message | DeadLetter) -> Message | DeadLetter:
    """Return a row as it is: without a hook, nothing is redacted."""
    return row


@dataclass
class Site:
    """One console."""

    # In read-only mode on connections that cannot write.
    operations: OutboxOperations
    # The doctor writes nothing, and looks at the database as those do who write.
    examined_operations: OutboxOperations
    title: str
    read_only: bool = False
    redact: Redact = show_as_it_is
    history: History = field(default_factory=History)
    examined: Examined | None = None
    jobs: dict[str, Job] = field(default_factory=dict)

    def add_job(self, job: Job) -> None:
        """Keep a job; the oldest ones that have ended are forgotten."""
        self.jobs[job.id] = job
        ended = [each.id for each in self.jobs.values() if not each.runs and each is not job]
        for each in ended[: max(0, len(self.jobs) - _JOBS)]:
            del self.jobs[each]

    @property
    def redacts(self) -> bool:
        """Whether bodies are hidden from users."""
        return self.redact is not show_as_it_is
