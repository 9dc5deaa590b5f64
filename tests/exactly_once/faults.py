"""Lives of workers that end by SIGKILL, some after a stop that was longer than their leases."""

import asyncio
import random
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from examples.bank.bank import LEASE_SECONDS
from tests.exactly_once.bank_tables import Books
from tests.exactly_once.worker_options import Driver, Orders
from tests.exactly_once.workers import ANSWER_SECONDS, Worker, Workers

SLOTS: Final = 2
# Some die about when they have begun to work, which takes them a tenth of a second; the others at any time after.
STILLBORN_SHARE: Final = 0.1
LONGEST_BIRTH: Final = 0.1
LONGEST_LIFE: Final = 0.6
STOP_TRIES: Final = 20
DRIVERS: Final[tuple[Driver, ...]] = ("asyncpg", "psycopg")
_WRITE: Final = re.compile(r'(UPDATE|INSERT INTO|DELETE FROM) "?(accounts|ledger|notifications|outbox)\b')

# Whether there is nothing more to learn from further faults.
Enough = Callable[[], Awaitable[bool]]


@dataclass
class Toll:
    """What was done to the workers, and in the middle of what."""

    kills: int = 0
    kills_in_transaction: int = 0
    stops: int = 0
    stops_in_transaction: int = 0
    points: Counter[str] = field(default_factory=Counter)


class Faults:
    """Two workers at a time, each replaced when it has been killed."""

    def __init__(self, workers: Workers, books: Books, orders: Callable[[str, Driver], Orders], seed: int) -> None:
        self.toll = Toll()
        self._workers = workers
        self._books = books
        self._orders = orders
        self._rng = random.Random(f"{seed}/faults")
        self._started = 0

    async def strike(self, kills: int, *, stop_share: float, enough: Enough | None = None) -> None:
        """Kill so many workers, or fewer if it is enough; stop a share of them before, for longer than a lease."""
        left = iter(range(kills))
        async with asyncio.TaskGroup() as slots:
            for _ in range(SLOTS):
                slots.create_task(self._lives(left, stop_share, enough))

    async def start(self) -> Worker:
        """Start a worker with a name of its own, and a driver in turn."""
        self._started += 1
        driver = DRIVERS[self._started % len(DRIVERS)]
        return await self._workers.start(self._orders(f"worker{self._started}", driver))

    async def _lives(self, left: Iterator[int], stop_share: float, enough: Enough | None) -> None:
        for _ in left:
            if enough is not None and await enough():
                return
            worker = await self.start()
            if self._rng.random() < STILLBORN_SHARE:
                await asyncio.sleep(self._rng.uniform(0.0, LONGEST_BIRTH))
            else:
                await self._live(worker, stopped=self._rng.random() < stop_share)
            await self._kill(worker)

    async def _live(self, worker: Worker, *, stopped: bool) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            await worker.at_work.wait()
        await asyncio.sleep(self._rng.uniform(0.0, LONGEST_LIFE))
        if stopped:
            await self._stop(worker)
            await asyncio.sleep(LONGEST_LIFE)  # enough to find out that it was not alone

    async def _kill(self, worker: Worker) -> None:
        # It is stopped first: whatever is open then cannot be committed any more.
        worker.signal(signal.SIGSTOP)
        open_transactions = await self._books.open_transactions(worker.name)
        await self._workers.kill(worker)
        self.toll.kills += 1
        self.toll.kills_in_transaction += bool(open_transactions)
        self.toll.points.update(map(_point, open_transactions))

    async def _stop(self, worker: Worker) -> None:
        self.toll.stops += 1
        self.toll.stops_in_transaction += await self._stop_in_transaction(worker)
        # A lease is lost when somebody takes the row, and whoever is there may have others to take first.
        await asyncio.sleep(LEASE_SECONDS * self._rng.uniform(1.5, 2.5))
        worker.signal(signal.SIGCONT)

    async def _stop_in_transaction(self, worker: Worker) -> bool:
        """Stop a worker, in the middle of a transaction if it has one within a few tries."""
        for _ in range(STOP_TRIES):
            worker.signal(signal.SIGSTOP)
            if await self._books.open_transactions(worker.name):
                return True
            worker.signal(signal.SIGCONT)
            await asyncio.sleep(self._rng.uniform(0.0, 0.02))
        worker.signal(signal.SIGSTOP)
        return False


def _point(query: str) -> str:
    write = _WRITE.search(query)
    return f"{write[1]} {write[2]}" if write else "something of the driver's"
