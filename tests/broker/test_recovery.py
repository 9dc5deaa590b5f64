"""Rows of a killed process run again long before their leases end, because its lock is gone.

Leases last for a minute here, the default. Every wait is shorter, so nothing happens because a lease ended.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from faststream_outbox.storage import NewRow
from faststream_outbox.storage.nodes import GRACE, node_of
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.broker.killed_subscriber import QUEUE, KilledSubscriber
from tests.killed_processes import ProcessGroup
from tests.order.settings import ORDERINGS
from tests.waiting import until

SOON = 45.0  # on a busy machine; a lease lasts for 60
HELD = "SELECT count(*) FROM outbox WHERE lease_expires_at > now()"


Processes = ProcessGroup[KilledSubscriber]


@pytest.fixture
async def processes(postgres: PostgresBackend, tmp_path: Path) -> AsyncIterator[Processes]:
    url = postgres.engine.url.render_as_string(hide_password=False)
    processes = ProcessGroup(KilledSubscriber(url, str(tmp_path / "log")))
    yield processes
    await processes.kill_all()


async def test_rows_of_a_killed_process_run_side_by_side_in_another(
    postgres: PostgresBackend, processes: Processes
) -> None:
    """Most of them were never started: none of them waits for another."""
    orders = processes.orders
    orders.handler_seconds, orders.options = 600.0, {"max_workers": 4, "fetch_batch_size": 40}
    await postgres.insert(*(NewRow(QUEUE, b"%d" % n) for n in range(40)))
    victim = await processes.start()
    await until(lambda: len(orders.lines("started")) == 4)
    held = await postgres.one(HELD)
    assert isinstance(held, int)
    orders.handler_seconds = 0.0
    await processes.start()
    await processes.kill(victim)
    await until(lambda: postgres.one("SELECT count(*) FROM outbox"), lambda left: left == 0, seconds=SOON)
    assert Counter(orders.lines("ended")) == {str(n): 1 for n in range(40)}
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("strategy", ORDERINGS)
async def test_keys_of_a_killed_process_go_on_in_order_in_another(
    postgres: PostgresBackend, processes: Processes, strategy: str
) -> None:
    orders = processes.orders
    orders.handler_seconds, orders.strategy, orders.options = 600.0, strategy, {"max_workers": 8}
    keys = [f"k{n}" for n in range(8)]
    await postgres.insert(*(NewRow(QUEUE, f"{key}-{n}".encode(), key=key) for n in range(3) for key in keys))
    victim = await processes.start()
    await until(lambda: len(orders.lines("started")) == len(keys))
    orders.handler_seconds = 0.0
    await processes.start()
    await processes.kill(victim)
    await until(lambda: postgres.one("SELECT count(*) FROM outbox"), lambda left: left == 0, seconds=SOON)
    for key in keys:
        ended = [body for body in orders.lines("ended") if body.startswith(f"{key}-")]
        assert ended == [f"{key}-{n}" for n in range(3)]


async def test_a_process_that_starts_recovers_what_the_one_before_it_had(
    postgres: PostgresBackend, processes: Processes
) -> None:
    orders = processes.orders
    orders.handler_seconds, orders.options = 600.0, {"max_workers": 4}
    rows = [NewRow(QUEUE, b"%d" % n, key=f"k{n}" if n % 2 else None) for n in range(8)]
    await postgres.insert(*rows)
    victim = await processes.start()
    await until(lambda: len(orders.lines("started")) == 4)
    await processes.kill(victim)
    orders.handler_seconds = 0.0
    await processes.start()
    await until(lambda: postgres.one("SELECT count(*) FROM outbox"), lambda left: left == 0, seconds=SOON)
    assert Counter(orders.lines("ended")) == {str(n): 1 for n in range(8)}


async def test_a_living_process_keeps_what_it_runs_beside_one_that_starts(
    postgres: PostgresBackend, processes: Processes
) -> None:
    """Also if the connection that held its lock is cut: it takes the lock again in time."""
    orders = processes.orders
    orders.handler_seconds, orders.options = 3 * GRACE, {"max_workers": 8}
    await postgres.insert(*(NewRow(QUEUE, b"%d" % n, key=f"k{n}" if n % 2 else None) for n in range(8)))
    await processes.start()
    await until(lambda: len(orders.lines("started")) == 8)
    await processes.start()
    listening = "pg_stat_activity WHERE application_name LIKE 'faststream-outbox%'"
    assert await postgres.one(f"SELECT count(pg_terminate_backend(pid)) FROM {listening}")
    await until(lambda: len(orders.lines("ended")) == 8)
    assert len(orders.lines("started")) == 8, "nobody else started one of them"
    await until(lambda: postgres.one("SELECT count(*) FROM outbox"), lambda left: left == 0)


async def test_a_handler_that_runs_on_in_its_thread_keeps_its_row_after_a_stop(postgres: PostgresBackend) -> None:
    """The lock of the node ends with the stop; the lease does not."""
    broker, began, go_on = broker_on(postgres, graceful_timeout=0.1), threading.Event(), threading.Event()

    @broker.subscriber(QUEUE)
    def handle(_: int) -> None:
        began.set()
        go_on.wait(60)

    try:
        async with started(broker):
            await publish(broker, postgres, 1, queue=QUEUE)
            await until(began.is_set)
        [row] = await postgres.rows()
        assert node_of(row.lease.token) is not None
        assert row.acquired_at == row.lease_expires_at, "no node takes it for that of a dead one before"
    finally:
        go_on.set()


async def test_a_row_that_kills_processes_is_the_only_one_that_is_given_up(
    postgres: PostgresBackend, processes: Processes
) -> None:
    """Others run beside it after its first kill; after the second it runs alone."""
    orders = processes.orders
    orders.options = {"max_workers": 4, "max_deliveries": 3}
    await postgres.insert(NewRow(QUEUE, b"poison"), *(NewRow(QUEUE, b"%d" % n) for n in range(9)))
    deaths = 0
    async with asyncio.timeout(120):
        while await postgres.one("SELECT count(*) FROM outbox"):
            process = await processes.start()
            while process.returncode is None and await postgres.one("SELECT count(*) FROM outbox"):
                await asyncio.sleep(0.02)
            deaths += process.returncode == 1
            await processes.kill(process)
    [letter] = await postgres.dead_letters()
    assert (letter.payload, letter.failure_reason, deaths) == (b"poison", "max_deliveries", 3)
    assert set(orders.lines("ended")) == {str(n) for n in range(9)}
