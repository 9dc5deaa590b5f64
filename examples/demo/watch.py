"""Counts, while the demo runs, what the shop has placed, what each queue holds and what each worker has handled."""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from examples.demo.messages import ACCOUNTS, QUEUES, STATEMENTS
from examples.demo.shop import Shop
from faststream_outbox import OutboxBroker

# Often enough to look alive; the counting reads whole tables.
LOOK_SECONDS = 0.2
# A rate is the mean of this many looks, to smooth it.
_RATE_LOOKS = 6
_DELIVERIES = text("""
SELECT queue, worker, count(*), count(*) FILTER (WHERE queue = :keyed AND ended_at IS NULL AND cut_off_at IS NULL)
  FROM deliveries GROUP BY queue, worker
""")
_STATEMENTS = text("SELECT count(*) FROM statements")


@dataclass(frozen=True)
class QueueCount:
    """One queue, at one look."""

    queue: str
    ready: int = 0
    in_flight: int = 0
    scheduled: int = 0
    expired: int = 0  # leased by a worker that is gone
    blocked: int = 0  # they wait behind another message of their key
    dead: int = 0
    handled: int = 0

    @property
    def waiting(self) -> int:
        """All that is still to be settled."""
        return self.ready + self.in_flight + self.scheduled + self.expired + self.blocked


@dataclass(frozen=True)
class WorkerCount:
    """One worker, at one look."""

    number: int
    handled: int = 0
    accounts: int = 0  # that it has in hand
    killed: bool = False


@dataclass(frozen=True)
class Look:
    """Everything, at one moment; two looks are equal if nothing has moved between them."""

    at: float = field(compare=False)
    accepted: int = 0
    cancelled: int = 0
    queues: tuple[QueueCount, ...] = tuple(map(QueueCount, QUEUES))
    workers: tuple[WorkerCount, ...] = ()

    @property
    def handled(self) -> int:
        """Deliveries so far, repeated ones included."""
        return sum(each.handled for each in self.queues)

    @property
    def waiting(self) -> int:
        """Messages that are still to be settled."""
        return sum(each.waiting for each in self.queues)


@dataclass
class Watch:
    """Looks again and again; `look` is the latest."""

    engine: AsyncEngine
    broker: OutboxBroker
    shop: Shop
    killed: set[int] = field(default_factory=set)  # workers
    best_rate: float = 0.0  # deliveries per second of all queues together, when there were most
    looks: deque[Look] = field(default_factory=lambda: deque([Look(time.monotonic())], maxlen=_RATE_LOOKS))

    @property
    def look(self) -> Look:
        """What was seen last."""
        return self.looks[-1]

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look_again()
            await asyncio.sleep(LOOK_SECONDS)

    async def look_again(self) -> Look:
        """Count everything now."""
        stats = {each.queue: each for each in await self.broker.stats()}
        async with self.engine.connect() as connection:
            rows = (await connection.execute(_DELIVERIES, {"keyed": ACCOUNTS})).all()
            relayed = await connection.scalar(_STATEMENTS)
        handled, handled_by, accounts = Counter({STATEMENTS: relayed}), Counter[int](), Counter[int]()
        for queue, worker, count, in_hand in rows:
            handled[queue] += count
            handled_by[worker] += count
            accounts[worker] += in_hand
        workers = tuple(
            WorkerCount(worker, count, accounts[worker], worker in self.killed)
            for worker, count in sorted(handled_by.items())
        )
        queues = tuple(
            QueueCount(
                queue,
                *(each.ready, each.in_flight, each.scheduled, each.expired, each.blocked, each.dead),
                handled=handled[queue],
            )
            if (each := stats.get(queue))
            else QueueCount(queue, handled=handled[queue])
            for queue in QUEUES
        )
        self.looks.append(Look(time.monotonic(), len(self.shop.accepted), len(self.shop.cancelled), queues, workers))
        self.best_rate = max(self.best_rate, sum(map(self.rate, QUEUES)))
        return self.look

    def rate(self, queue: str) -> float:
        """Deliveries per second, lately."""
        first, last = self.looks[0], self.looks[-1]
        before, after = (sum(each.handled for each in look.queues if each.queue == queue) for look in (first, last))
        return (after - before) / (last.at - first.at) if last.at > first.at else 0.0
