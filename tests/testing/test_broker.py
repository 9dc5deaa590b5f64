"""The test broker, as users of FastStream's other test brokers know it."""

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from faststream import FastStream, TestApp
from faststream.exceptions import SetupError
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from faststream_outbox import ConstantRetry, OutboxBroker, TestOutboxBroker
from faststream_outbox.embedded import Database
from faststream_outbox.testing import fake_session
from tests.faststream.environments import PATIENCE, MemoryEnvironment, PostgresEnvironment, Received
from tests.waiting import until


class Person(BaseModel):
    name: str


@pytest.fixture
def broker(memory: MemoryEnvironment) -> OutboxBroker:
    return memory.broker()


async def test_a_handler_has_a_mock(broker: OutboxBroker) -> None:
    @broker.subscriber("orders")
    async def handle(body: str) -> None: ...

    with pytest.raises(SetupError, match="test broker"):
        handle.mock.assert_not_called()
    async with TestOutboxBroker(broker) as test_broker:
        await test_broker.publish("a", queue="orders", headers={"h": "1"}, correlation_id="c")
        handle.mock.assert_called_once_with("a")
        await handle.assert_called_once_with("a", headers={"h": "1"}, correlation_id="c")
        with pytest.raises(AssertionError):
            await handle.assert_called_once_with("b")
    with pytest.raises(SetupError, match="test broker"):
        handle.mock.assert_not_called()


async def test_a_publisher_has_a_mock(broker: OutboxBroker) -> None:
    publisher = broker.publisher("done")
    by_hand = broker.publisher("by hand")

    @publisher
    @broker.subscriber("orders")
    async def handle(person: Person) -> Person:
        await by_hand.publish(Person(name="somebody"), session=fake_session())
        return person

    async with TestOutboxBroker(broker) as test_broker:
        await test_broker.publish(Person(name="nobody"), queue="orders")
        publisher.mock.assert_called_once_with({"name": "nobody"})
        await publisher.assert_called_once_with(Person(name="nobody"))
        by_hand.mock.assert_called_once_with({"name": "somebody"})


async def test_a_publisher_whose_messages_are_handled_has_a_mock_too(broker: OutboxBroker) -> None:
    publisher = broker.publisher("done")

    @publisher
    @broker.subscriber("orders")
    async def handle(body: str) -> str:
        return body

    @broker.subscriber("done")
    async def collect(body: str) -> None: ...

    async with TestOutboxBroker(broker) as test_broker:
        assert len(test_broker.subscribers) == 2
        await test_broker.publish("a", queue="orders")
        publisher.mock.assert_called_once_with("a")
        collect.mock.assert_called_once_with("a")


async def test_what_a_handler_raises_surfaces_and_is_settled(broker: OutboxBroker) -> None:
    @broker.subscriber("orders", retry_strategy=ConstantRetry(delay_seconds=60))
    async def handle(body: str) -> None:
        raise ValueError(body)

    def parse(_row: Any) -> None:
        raise KeyError

    @broker.subscriber("unreadable", parser=parse)
    async def handle_unreadable(body: str) -> None: ...

    test = TestOutboxBroker(broker)
    async with test as test_broker:
        with pytest.raises(ValueError, match="a"):
            await test_broker.publish("a", queue="orders")
        with pytest.raises(KeyError):
            await test_broker.publish("a", queue="unreadable")
        assert [row.attempts_count for row in test.fake_client.rows] == [1, 1]


async def test_nothing_is_left_of_the_test(broker: OutboxBroker) -> None:
    @broker.subscriber("orders")
    async def handle(body: str) -> None: ...

    publishers = [broker.publisher("orders"), broker.publisher("done")]
    real = (broker._producer, broker.client, broker.config.wakeup)
    for _ in range(2):
        async with TestOutboxBroker(broker) as test_broker:
            assert isinstance(test_broker.start, Mock)
            assert len(test_broker.subscribers) == 2
            await publishers[1].publish("a", session=fake_session())
        assert len(broker.subscribers) == 1
        gc.collect()
        assert len(broker.subscribers) == 1
    assert not isinstance(broker.start, Mock)
    assert real == (broker._producer, broker.client, broker.config.wakeup)


async def test_nothing_is_left_of_a_test_that_fails(broker: OutboxBroker) -> None:
    real = (broker._producer, broker.client, broker.config.wakeup)
    with pytest.raises(ZeroDivisionError):
        async with TestOutboxBroker(broker):
            raise ZeroDivisionError
    assert real == (broker._producer, broker.client, broker.config.wakeup)
    assert not isinstance(broker.start, Mock)


async def test_rows_that_nobody_handles_stay(broker: OutboxBroker) -> None:
    test = TestOutboxBroker(broker)
    async with test as test_broker:
        row_id = await test_broker.publish({"n": 1}, queue="orders", timer_id="t")
        [row] = test.fake_client.rows
        assert (row.id, row.queue, row.payload, row.timer_id) == (row_id, "orders", b'{"n":1}', "t")
        assert [each.id for each in await test_broker.fetch_unprocessed(queue="orders")] == [row_id]
        assert test.feed("orders", b"2") != row_id
        assert len(test.fake_client.rows) == 2
    assert test.fake_client.dlq_rows == []


@pytest.mark.parametrize("run_loops", [False, True])
async def test_a_timer_that_is_fed_twice_is_one_row(broker: OutboxBroker, *, run_loops: bool) -> None:
    test = TestOutboxBroker(broker, run_loops=run_loops)
    later = datetime.now(UTC) + timedelta(days=1)
    async with test as test_broker:
        first = test.feed("orders", b"1", timer_id="t", next_attempt_at=later)
        assert first is not None
        assert test.feed("orders", b"2", timer_id="t") is None
        assert await test_broker.publish(3, queue="orders", timer_id="t") is None
        assert test.feed("others", b"4", timer_id="t") is not None
        assert [(row.id, row.payload) for row in await test_broker.fetch_unprocessed(queue="orders")] == [(first, b"1")]


async def test_rows_of_a_key_that_are_fed_keep_their_order(broker: OutboxBroker, received: Received) -> None:
    @broker.subscriber("orders", max_workers=4)
    async def handle(number: int) -> None:
        received.put(number)

    test = TestOutboxBroker(broker, run_loops=True)
    async with test:
        for body in (b"1", b"2", b"3"):
            test.feed("orders", body, key="k")
        assert {row.entity_key for row in test.fake_client.rows} == {"k"}
        assert [await received.next() for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (datetime(2030, 1, 1), ValueError, "next_attempt_at has no time zone"),  # noqa: DTZ001 - that is the point
        (5, TypeError, "next_attempt_at is a datetime"),
    ],
)
async def test_a_wrong_time_of_a_fed_row_is_refused_by_its_name(
    broker: OutboxBroker, value: Any, error: type[Exception], words: str
) -> None:
    test = TestOutboxBroker(broker)
    async with test:
        with pytest.raises(error, match=words):
            test.feed("orders", b"1", next_attempt_at=value)
        assert test.fake_client.rows == []


async def test_a_row_that_is_fed_wakes_the_loops(broker: OutboxBroker, received: Received) -> None:
    @broker.subscriber("orders", min_fetch_interval=3600, max_fetch_interval=3600)
    async def handle(body: str) -> None:
        received.put(body)

    test, notified = TestOutboxBroker(broker, run_loops=True), list[str]()
    async with test, test.fake_client.store.listen(notified.append):
        later = datetime.now(UTC) + timedelta(days=1)
        for queue in ("orders", "others", "others"):
            test.feed(queue, b"a", timer_id="t", next_attempt_at=later if queue == "others" else None)
        assert notified == ["orders", "others"]  # what makes the loops look, here as in another process
        assert await received.next() == "a"


async def test_with_an_application(memory: MemoryEnvironment, received: Received) -> None:
    broker = memory.broker()
    app = FastStream(broker)
    started: list[str] = []
    app.after_startup(lambda: started.append("after"))

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        received.put(body)

    async with TestOutboxBroker(broker) as test_broker, TestApp(app):
        assert started == ["after"]
        await test_broker.publish("a", queue="orders")
        assert await received.next() == "a"


async def test_brokers_that_share_a_table_see_each_others_messages(
    memory: MemoryEnvironment, received: Received
) -> None:
    first, second = memory.broker(), memory.broker()

    @second.subscriber("orders")
    async def handle(body: str) -> None:
        received.put(body)

    async with TestOutboxBroker(first, second) as (one, other):
        assert (one, other) == (first, second)
        await one.publish("a", queue="orders")
        assert await received.next() == "a"


async def test_with_the_real_loops_a_failure_is_retried(broker: OutboxBroker, received: Received) -> None:
    @broker.subscriber("orders", retry_strategy=ConstantRetry(delay_seconds=0.01), retry_flush_interval_ms=0)
    async def handle(body: str) -> None:
        received.put(body)
        if handle.mock.call_count < 3:
            raise ValueError

    async with TestOutboxBroker(broker, run_loops=True) as test_broker:
        await test_broker.publish("a", queue="orders")
        assert await received.take(3) == ["a"] * 3
        await handle.wait_call(PATIENCE)


async def test_with_the_real_database(real: PostgresEnvironment) -> None:
    broker = real.broker()
    publisher = broker.publisher("done")

    @broker.subscriber("orders")
    @publisher
    async def handle(body: str) -> str:
        return body.upper()

    async with TestOutboxBroker(broker, with_real=True) as test_broker:
        await test_broker.publish("a", queue="orders")  # committed, without a session
        await handle.wait_call(PATIENCE)
        handle.mock.assert_called_once_with("a")

        await until(lambda: publisher.mock.called)
        publisher.mock.assert_called_once_with("A")
        await real.drained()
    assert len(broker.subscribers) == 1


def test_publishing_without_an_event_loop(memory: MemoryEnvironment, received: Received) -> None:
    broker = memory.broker()

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        received.put(body)

    async def run() -> None:
        async with TestOutboxBroker(broker):
            with Session(create_engine("sqlite://")) as session:
                broker.publish_sync("a", queue="orders", session=session)
            assert await received.next() == "a"

    asyncio.run(run())


async def test_publishing_from_synchronous_code(
    real: PostgresEnvironment, outbox_postgres: Database, received: Received
) -> None:
    broker = real.broker()

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        received.put(body)

    engine = create_engine(outbox_postgres.url("psycopg"))

    def work() -> None:
        with Session(engine) as session, session.begin():
            broker.publish_sync("rolled back", queue="orders", session=session)
            session.rollback()
        with Session(engine) as session, session.begin():
            broker.publish_sync("a", queue="orders", session=session)

    async with real.running(broker):
        await asyncio.to_thread(work)
        assert await received.next() == "a"
        await real.drained()
    engine.dispose()
    assert received.empty
