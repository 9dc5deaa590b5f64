"""Draining, on the real loops over rows in memory."""

import asyncio
import time

import pytest
from sqlalchemy import MetaData

from faststream_outbox import OutboxBroker, TestOutboxBroker, make_outbox_table
from faststream_outbox.testing import FakeOutboxClient
from tests.waiting import until

TABLE = make_outbox_table(MetaData())


def client_of(broker: OutboxBroker) -> FakeOutboxClient:
    client = broker.client
    assert isinstance(client, FakeOutboxClient)
    return client


async def test_drain_completes() -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    handled: list[int] = []

    @broker.subscriber("orders")
    async def handle(number: int) -> None:
        await asyncio.sleep(0.1)
        handled.append(number)

    async with TestOutboxBroker(broker, run_loops=True):
        client = client_of(broker)
        for number in range(5):
            await broker.publish(number, queue="orders")
        await until(lambda: all(row.acquired_token for row in client.rows))
        await broker.stop()
        assert handled == [0, 1, 2, 3, 4]
        assert client.rows == []


async def test_drain_timeout() -> None:
    broker = OutboxBroker(outbox_table=TABLE, graceful_timeout=0.2)
    started, cancelled = asyncio.Event(), asyncio.Event()

    @broker.subscriber("orders")
    async def handle(_number: int) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with TestOutboxBroker(broker, run_loops=True):
        await broker.publish(1, queue="orders")
        await started.wait()
        began = time.monotonic()
        await broker.stop()
        assert time.monotonic() - began < 30  # the handler sleeps for twice as long
        assert cancelled.is_set()
        [row] = client_of(broker).rows
        assert row.acquired_token is None  # free at once, for whoever comes next


async def test_fetch_halts_immediately() -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    started, go_on = asyncio.Event(), asyncio.Event()
    handled: list[int] = []

    @broker.subscriber("orders", fetch_batch_size=10)
    async def handle(number: int) -> None:
        started.set()
        await go_on.wait()
        handled.append(number)

    async with TestOutboxBroker(broker, run_loops=True):
        client = client_of(broker)
        await broker.publish_batch(*range(100), queue="orders")
        await started.wait()
        await until(lambda: sum(row.deliveries_count for row in client.rows) == 20)  # a batch runs, one waits
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        assert handled == list(range(20))
        assert len(client.rows) == 80
        assert {row.deliveries_count for row in client.rows} == {0}


async def test_drain_without_a_bound_waits_for_the_handler() -> None:
    broker = OutboxBroker(outbox_table=TABLE, graceful_timeout=None)
    started, go_on = asyncio.Event(), asyncio.Event()

    @broker.subscriber("orders")
    async def handle(_number: int) -> None:
        started.set()
        await go_on.wait()

    async with TestOutboxBroker(broker, run_loops=True):
        await broker.publish(1, queue="orders")
        await started.wait()
        stopping = asyncio.create_task(broker.stop())
        done, _ = await asyncio.wait([stopping], timeout=0.3)
        assert not done
        go_on.set()
        await stopping
        assert client_of(broker).rows == []


async def test_subscribers_drain_side_by_side() -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    together = asyncio.Barrier(3)
    started: set[str] = set()

    for queue in ("a", "b", "c"):

        @broker.subscriber(queue)
        async def handle(name: str) -> None:
            started.add(name)
            await stopping.wait()
            await together.wait()  # passes only if all three run while the broker stops

    stopping = asyncio.Event()
    async with TestOutboxBroker(broker, run_loops=True):
        for queue in ("a", "b", "c"):
            await broker.publish(queue, queue=queue)
        await until(lambda: len(started) == 3)
        task = asyncio.create_task(broker.stop())
        await asyncio.sleep(0)
        stopping.set()
        async with asyncio.timeout(10):
            await task
        assert client_of(broker).rows == []


async def test_a_batch_is_handled_to_its_end_before_a_failure_surfaces() -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    handled: list[int] = []

    @broker.subscriber("orders")
    async def handle(number: int) -> None:
        handled.append(number)
        if number == 1:
            raise ValueError("no")

    async with TestOutboxBroker(broker):
        with pytest.raises(ValueError, match="no"):
            await broker.publish_batch(0, 1, 2, queue="orders")
        assert [row.payload for row in client_of(broker).rows] == [b"1"]
    assert handled == [0, 1, 2]


async def test_publish_sync_runs_a_handler_that_waits() -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    handled: list[int] = []

    @broker.subscriber("orders")
    async def handle(number: int) -> None:
        await asyncio.sleep(0)
        handled.append(number)

    async with TestOutboxBroker(broker):
        broker.publish_sync(1, queue="orders", session=None)  # type: ignore[arg-type] # as the test broker allows
    assert handled == [1]
