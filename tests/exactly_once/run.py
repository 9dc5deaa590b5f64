"""One run: transfers keep coming while workers are stopped and killed, then peace until all of them are done."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from tests.exactly_once.bank_tables import Books
from tests.exactly_once.faults import SLOTS, Enough, Faults, Toll
from tests.exactly_once.worker_options import Driver, Orders
from tests.exactly_once.workers import open_nursery

# The seed decides what is tried; when it happens is up to the machine.
SEED: Final = int(os.environ.get("OUTBOX_SOAK_SEED") or random.randrange(1_000_000))
# Enough for all workers to be busy, and few enough for a worker that is killed not to take too many with it: what it
# held comes back when its lease is over, and then runs alone.
MOST_UNCLAIMED: Final = 4
MOST_WAITING: Final = 30
# As workers count it: the lease of a row that was handled turned out to be lost.
REFUSED: Final = "lease_lost:terminal"
# The slowest way to an empty outbox: a few leases that run out, and suspects that run one by one.
DRAIN_SECONDS: Final = 45.0


class Run:
    """A bank that is open for business."""

    def __init__(self, books: Books, faults: Faults, seed: int, directory: Path) -> None:
        self.books = books
        self._faults = faults
        self._rng = random.Random(f"{seed}/load")
        self._directory = directory

    @property
    def toll(self) -> Toll:
        """What was done to the workers."""
        return self._faults.toll

    async def strike(self, kills: int, *, stop_share: float = 0.0, enough: Enough | None = None) -> None:
        """Kill workers while transfers keep coming."""
        async with asyncio.TaskGroup() as tasks:
            coming = tasks.create_task(self._keep_coming())
            await self._faults.strike(kills, stop_share=stop_share, enough=enough)
            coming.cancel()

    async def drain(self) -> None:
        """Let workers that nobody disturbs do what is left."""
        for _ in range(SLOTS):
            await self._faults.start()
        async with asyncio.timeout(DRAIN_SECONDS):
            while any(await self.books.waiting()):
                await asyncio.sleep(0.05)

    def counts(self) -> Counter[str]:
        """What all workers counted."""
        return Counter(_counts(self._directory).read_text().split())

    async def has_refused_a_commit(self) -> bool:
        """Whether a handler was done, and its transaction rolled back because the row was another's by then."""
        return self.counts()[REFUSED] > 0

    async def _keep_coming(self) -> None:
        while True:
            unclaimed, all_of_them = await self.books.waiting()
            for _ in range(min(MOST_UNCLAIMED - unclaimed, MOST_WAITING - all_of_them)):
                await self.books.accept(self._rng)
            await asyncio.sleep(0.02)


def _counts(directory: Path) -> Path:
    return directory / "counts"


@asynccontextmanager
async def open_bank(database: Database, directory: Path, *, seed: int, variant: str = "sound") -> AsyncIterator[Run]:
    """Open a bank in an empty database, with workers of a variant; its workers log to a file in `directory`."""

    def orders(name: str, driver: Driver) -> Orders:
        files = {"counts": str(_counts(directory)), "log": str(directory / "log")}
        return Orders(database.url(driver), name, seed, variant, **files)

    print(f"OUTBOX_SOAK_SEED={seed}")  # noqa: T201 - to repeat the run
    engine = create_async_engine(database.url("asyncpg"))
    books = Books(engine)
    try:
        await books.open()
        async with open_nursery() as workers:
            yield Run(books, Faults(workers, books, orders, seed), seed, directory)
    finally:
        await engine.dispose()
