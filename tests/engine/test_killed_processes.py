"""Subscribers that are killed: from outside, and by their own rows."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from faststream_outbox.storage import NewRow
from tests.backends import PostgresBackend
from tests.engine.pipelines import fill
from tests.engine.subscriber_process import POISON, Orders
from tests.killed_processes import ProcessGroup
from tests.waiting import until

# More of them on demand; a few in CI.
KILLS = int(os.environ.get("OUTBOX_TEST_KILLS", "10"))
PROCESSES = 3
FAST = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2, "lease_ttl_seconds": 1.0}


@pytest.fixture
def driver() -> str:
    """Processes die the same way whatever the driver."""
    return "asyncpg"


@pytest.fixture
async def orders(postgres: PostgresBackend, tmp_path: Path) -> Orders:
    url = postgres.engine.url.render_as_string(hide_password=False)
    return Orders(url=url, log=str(tmp_path / "started"), options=dict(FAST))


@pytest.fixture
async def processes(orders: Orders) -> AsyncIterator["ProcessGroup[Orders]"]:
    processes = ProcessGroup(orders)
    yield processes
    await processes.kill_all()


async def until_started(orders: Orders, count: int) -> None:
    await until(lambda: len(orders.started()) >= count)


async def test_a_row_that_kills_its_process_is_the_only_one_that_dies_of_it(
    postgres: PostgresBackend, processes: ProcessGroup[Orders]
) -> None:
    """Nine innocent rows are claimed beside it, each time; with three deliveries for each, only it runs out of them."""
    processes.orders.options |= {"max_deliveries": 3}
    await postgres.insert(NewRow("q", POISON), *(NewRow("q", b"%d" % n) for n in range(9)))
    deaths = 0
    async with asyncio.timeout(120):
        while await postgres.one("SELECT count(*) FROM outbox"):
            process = await processes.start()
            while process.returncode is None and await postgres.one("SELECT count(*) FROM outbox"):
                await asyncio.sleep(0.02)
            if process.returncode is None:
                process.terminate()
            deaths += await process.wait() == 1
    [letter] = await postgres.dead_letters()
    assert (letter.payload, letter.failure_reason, letter.deliveries_count) == (POISON, "max_deliveries", 4)
    started = Counter(processes.orders.started())
    assert started.pop(POISON.decode()) == deaths == 3
    assert started == {str(n): 1 for n in range(9)}, "and the others ran, once, because they had not begun before"


async def test_processes_that_are_killed_lose_nothing(
    postgres: PostgresBackend, processes: ProcessGroup[Orders]
) -> None:
    rng = random.Random(5)
    processes.orders.handler_seconds = 0.005
    processes.orders.options |= {"max_workers": 4, "fetch_batch_size": 10}
    running = [await processes.start() for _ in range(PROCESSES)]
    published = 0
    async with asyncio.timeout(120 + 3 * KILLS):
        for _ in range(KILLS):
            await postgres.insert(*(NewRow("q", b"%d" % (published + n)) for n in range(60)))
            published += 60
            # Something has been done since the last death, and more is under way.
            await until_started(processes.orders, len(processes.orders.started()) + rng.randint(1, 50))
            victim = running.pop(rng.randrange(PROCESSES))
            victim.kill()
            await victim.wait()
            running.append(await processes.start())
        await until(lambda: postgres.one("SELECT count(*) FROM outbox"), lambda found: not found)
    started = Counter(processes.orders.started())
    assert set(started) == {str(n) for n in range(published)}
    assert await postgres.dead_letters() == []


async def test_a_terminated_process_gives_back_what_it_had_not_begun(
    postgres: PostgresBackend, processes: ProcessGroup[Orders]
) -> None:
    await fill(postgres, 20)
    processes.orders.handler_seconds, processes.orders.drain_seconds = 0.4, 0.5
    processes.orders.options |= {"max_workers": 2, "lease_ttl_seconds": 60.0}
    async with asyncio.timeout(30):
        process = await processes.start()
        await until_started(processes.orders, 2)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    left = await postgres.rows()
    started = set(processes.orders.started())
    assert 0 < len(left) <= 18
    assert {row.acquired_token for row in left} == {None}, "nothing waits for a lease to run out"
    for row in left:
        assert row.deliveries_count == (row.payload.decode() in started)
