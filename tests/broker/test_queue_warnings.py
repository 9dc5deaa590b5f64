"""Warnings of queues that two subscribers read, and of rows in queues that nobody reads."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from faststream.redis import RedisBroker

from faststream_outbox import OutboxBroker, OutboxRouter
from faststream_outbox.broker.queue_warnings import UnservedQueues
from faststream_outbox.relay import Relay
from faststream_outbox.storage import NewRow
from faststream_outbox.wakeup.wakeup import Wakeup
from tests.backends import Backend, PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.engine.pipelines import Reports
from tests.relay.memory_target import Memory
from tests.waiting import until, until_empty


async def first(_body: bytes) -> None: ...


async def second(_body: bytes) -> None: ...


def two_subscribers(broker: OutboxBroker) -> None:
    broker.subscriber("q")(first)
    broker.subscriber("q")(second)


def one_in_a_router(broker: OutboxBroker) -> None:
    router = OutboxRouter(prefix="a-")
    router.subscriber("q")(second)
    broker.subscriber("a-q")(first)
    broker.include_router(router)


def one_queue_of_several(broker: OutboxBroker) -> None:
    broker.subscriber(["a", "q"])(first)
    broker.subscriber(["q", "b"])(second)


def two_handlers(broker: OutboxBroker) -> None:
    subscriber = broker.subscriber("q")
    subscriber(first, filter=lambda message: bool(message.headers))
    subscriber(second)


def two_queues(broker: OutboxBroker) -> None:
    router = OutboxRouter(prefix="a-")
    router.subscriber("q")(second)
    broker.subscriber("q")(first)
    broker.include_router(router)


@pytest.mark.parametrize(
    ("declare", "queue"),
    [
        pytest.param(two_subscribers, "q", id="two subscribers"),
        pytest.param(one_in_a_router, "a-q", id="one of them in a router"),
        pytest.param(one_queue_of_several, "q", id="one queue of several"),
        pytest.param(two_handlers, None, id="two handlers of one subscriber are all right"),
        pytest.param(two_queues, None, id="so are queues that differ by a prefix"),
    ],
)
async def test_a_queue_with_two_subscribers(
    postgres: PostgresBackend, declare: Callable[[OutboxBroker], None], queue: str | None
) -> None:
    records = Records()
    broker = broker_on(postgres, records)
    declare(broker)
    for _ in range(2):
        async with started(broker):
            await broker.start()  # a second start, by a test and by its application
    found = [(each.queue, each.subscribers, each.levelno) for each in records.named("queue_shared")]
    assert found == ([] if queue is None else [(queue, ["First", "Second"], logging.WARNING)])


async def test_rows_that_nobody_reads_are_told_once_with_their_count(postgres: PostgresBackend) -> None:
    records, handled = Records(), list[int]()
    broker = broker_on(postgres, records)
    router = OutboxRouter(prefix="a-")

    @broker.subscriber(["q", "other"])
    async def handle(number: int) -> None:
        handled.append(number)

    router.subscriber("q")(first)
    broker.include_router(router)
    Relay(broker, to=RedisBroker(), routes={"relayed": "channel"})
    for queue in ("q", "a-q", "relayed", "orderz"):
        await publish(broker, postgres, *range(3), queue=queue)
    await postgres.fill(1_500, queue="many", payload_bytes=1)
    async with started(broker):
        await broker.start()
        await until(lambda: len(handled) == 3)
    async with started(broker):
        await publish(broker, postgres, 3)
        await until(lambda: len(handled) == 4)
    [record] = records.named("queue_unserved")
    assert (record.queue, record.rows, record.levelno) == ("many,orderz", 1_003, logging.WARNING)
    assert "'many' (at least 1000), 'orderz' (3)" in record.getMessage()


@pytest.mark.parametrize("already", ["", "connected", "started"], ids=["neither", "connected", "started"])
async def test_a_relay_looks_for_rows_that_nobody_reads_too(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch, already: str
) -> None:
    """The queue of a route may be misspelled."""
    records = Records()
    monkeypatch.setattr("faststream_outbox.relay.relay.make_target", lambda target: target)
    broker = broker_on(postgres, records)
    relays = [Relay(broker, to=Memory(), routes={queue: "there"}) for queue in ("orders", "invoices")]
    for queue in ("orders", "invoices", "orderz"):
        await publish(broker, postgres, 1, queue=queue)
    for _ in range(2):
        if already:
            await (broker.connect() if already == "connected" else broker.start())
        for relay in relays:
            await relay.start()
        await until(postgres.rows, lambda rows: [row.queue for row in rows] == ["orderz"])
        for relay in relays:
            await relay.stop()
        await broker.stop()
    [record] = records.named("queue_unserved")
    assert (record.queue, record.rows) == ("orderz", 1)


async def test_a_broker_that_only_publishes_says_nothing(postgres: PostgresBackend) -> None:
    records = Records()
    broker = broker_on(postgres, records)
    broker.publisher("answers")
    await publish(broker, postgres, 1, queue="answers")
    async with started(broker):
        await publish(broker, postgres, 2, queue="answers")
    assert records.named("queue_unserved") == []


async def test_a_table_that_cannot_be_read_does_not_keep_a_broker_from_starting(postgres: PostgresBackend) -> None:
    records = Records()
    broker = broker_on(postgres, records)
    broker.subscriber("q")(first)
    await postgres.run("ALTER TABLE outbox RENAME TO gone")
    async with started(broker):
        await postgres.run("ALTER TABLE gone RENAME TO outbox")
        await publish(broker, postgres, b"1")
        await until_empty(postgres)
    assert records.named("outbox_unreadable")


@asynccontextmanager
async def watching(backend: Backend) -> AsyncIterator[Reports]:
    """Watch as a broker with one subscriber, of queue "q", does, and do not wait for others."""
    wakeup, reports, hears = Wakeup(backend.store), Reports(), asyncio.Event()
    wakeup.subscribe(["q"], hears.set)
    wakeup.start(listen=True)
    watch = UnservedQueues(backend.store, wakeup, lambda: ["q"], reports, reported=set(), first_wait=0.01)
    await watch.look_at_start()
    watch.start()
    await hears.wait()
    yield reports
    await watch.stop()
    await wakeup.stop()


async def insert(backend: Backend, queue: str) -> None:
    async with backend.transaction() as session:
        await backend.store.insert(session, NewRow(queue, b""), notify=True)


async def test_rows_that_come_later_are_seen_too(backend: Backend) -> None:
    async with watching(backend) as reports:
        assert reports.logs == []
        await insert(backend, "q")
        await insert(backend, "orderz")
        await until(lambda: reports.named("queue_unserved"))
        await insert(backend, "orderz")
        await insert(backend, "invoicez")
        await until(lambda: len(reports.named("queue_unserved")) == 2)
    assert [(log["queue"], log["rows"]) for log in reports.logs] == [("orderz", 1), ("invoicez", 1)]
