"""The other broker is connected before the first row is claimed, and stays so until the last is settled."""

import asyncio
import logging
from typing import Any

import pytest
from faststream import FastStream
from faststream.exceptions import SetupError
from faststream.kafka import KafkaRouter

from faststream_outbox import ConstantRetry
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.foreign_brokers.endpoints import KEEPING, Endpoint
from tests.waiting import until, until_empty


@pytest.mark.parametrize("endpoint", KEEPING, indirect=True)
async def test_a_broker_that_is_not_started_is_connected_and_disconnected_again(
    postgres: PostgresBackend, endpoint: Endpoint
) -> None:
    records = Records()
    broker, there = broker_on(postgres, records), endpoint.broker()

    @endpoint.publisher(there)
    @broker.subscriber("q")
    async def handle(body: int) -> int:
        return body

    app = FastStream(broker, logger=None)
    for number in range(2):  # and it can be done again
        await app.start()
        assert there._connection is not None
        await publish(broker, postgres, number)
        await until_empty(postgres)
        await app.stop()
        assert there._connection is None
    assert sorted([await message.decode() for message in await endpoint.received(2)]) == [0, 1]
    assert [record for record in records.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("shared", [True, False], ids=["of the application", "of ours"])
@pytest.mark.parametrize("endpoint", KEEPING, indirect=True)
async def test_what_is_in_hand_when_the_application_stops_is_still_published(
    postgres: PostgresBackend, endpoint: Endpoint, *, shared: bool
) -> None:
    records = Records()
    broker, there = broker_on(postgres, records), endpoint.broker()
    begun, go = asyncio.Event(), asyncio.Event()

    @endpoint.publisher(there)
    @broker.subscriber("q")
    async def handle(body: int) -> int:
        begun.set()
        await go.wait()
        return body

    app = FastStream(*([broker, there] if shared else [broker]), logger=None)
    await app.start()
    await publish(broker, postgres, 7)
    async with asyncio.timeout(30):
        await begun.wait()
        stopping = asyncio.create_task(app.stop())
        pipeline: Any = broker._outbox_subscribers[0]._pipeline
        await until(lambda: pipeline.ending)
        go.set()
        await stopping
    assert there._connection is None
    assert await postgres.rows() == []
    [message] = await endpoint.received(1)
    assert await message.decode() == 7
    assert [record for record in records.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("endpoint", KEEPING, indirect=True)
async def test_a_broker_that_the_application_connected_is_left_alone(
    postgres: PostgresBackend, endpoint: Endpoint
) -> None:
    broker, there = broker_on(postgres), endpoint.broker()

    @endpoint.publisher(there)
    @broker.subscriber("q")
    async def handle(body: int) -> int:
        return body

    await there.start()
    async with started(broker):
        await publish(broker, postgres, 1)
        await until_empty(postgres)
    assert there._connection is not None
    await there.stop()


@pytest.mark.parametrize("endpoint", ["redis stream"], indirect=True)
async def test_subscribers_of_the_other_broker_are_not_run(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker, there = broker_on(postgres), endpoint.broker()

    @endpoint.publisher(there)
    @broker.subscriber("q")
    async def handle(body: int) -> int:
        return body

    subscriber: Any = endpoint.subscriber(there)
    subscriber(handle)
    async with started(broker):
        await publish(broker, postgres, 1)
        await until_empty(postgres)
        assert (there.running, subscriber.running) == (False, False)
    assert there._connection is None


@pytest.mark.parametrize("endpoint", KEEPING, indirect=True)
async def test_a_broker_that_is_down_when_the_application_starts_is_waited_for(
    postgres: PostgresBackend, endpoint: Endpoint
) -> None:
    records = Records()
    broker, there = broker_on(postgres, records), endpoint.broker()

    @endpoint.publisher(there)
    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.1), publish_timeout=1.0)
    async def handle(body: int) -> int:
        return body

    handled = asyncio.Event()

    @broker.subscriber("other")
    async def handle_other(_body: int) -> None:
        handled.set()

    await endpoint.server.stop()
    await publish(broker, postgres, 1)
    async with started(broker):
        await publish(broker, postgres, 2, queue="other")
        await handled.wait()  # a handler that needs no Kafka does not wait for it
        await until(postgres.rows, lambda rows: rows and rows[0].attempts_count)
        await endpoint.server.start()
        await until_empty(postgres)
    [message] = await endpoint.received(1)
    assert await message.decode() == 1
    # The clients of Redis and of librdkafka connect when there is something to send.
    lazy = type(there).__name__ == "RedisBroker" or "confluent" in type(there).__module__
    reports = records.named("outlet_unreachable")
    assert bool(reports) is not lazy
    for report in reports[:1]:
        assert (report.levelno, type(there).__name__ in report.getMessage()) == (logging.ERROR, True)


@pytest.mark.parametrize("endpoint", ["kafka"], indirect=True)
async def test_a_stop_in_the_wrong_order_is_logged(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    records = Records()
    broker, there = broker_on(postgres, records), endpoint.broker()

    @endpoint.publisher(there)
    @broker.subscriber("q")
    async def handle(body: int) -> int:
        return body

    app = FastStream(there, broker, logger=None)
    await app.start()
    await app.stop()
    [report] = records.named("outlet_stops_first")
    assert "FastStream(broker, KafkaBroker(…))" in report.getMessage()


async def test_a_publisher_of_a_router_that_is_not_included_is_an_error(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @KafkaRouter().publisher("orders")
    @broker.subscriber("q")
    async def handle(body: int) -> int:
        return body

    with pytest.raises(SetupError, match=r"'orders.*include_router"):
        await broker.start()
    await broker.stop()
