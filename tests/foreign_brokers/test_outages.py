"""A publish that fails is a retry, never a loss: the row stays, and is delivered when the broker is back."""

from typing import Any

import pytest
from faststream.rabbit import RabbitExchange, RabbitQueue

from faststream_outbox import ConstantRetry, OutboxBroker
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.foreign_brokers.endpoints import KEEPING, Decorator, Endpoint
from tests.waiting import until, until_empty

PATIENT = ConstantRetry(delay_seconds=0.2, max_attempts=None)


def relaying(postgres: PostgresBackend, endpoint: Endpoint, **options: Any) -> OutboxBroker:
    broker = broker_on(postgres)
    options = {"max_workers": 5, "retry_strategy": PATIENT, "publish_timeout": 1.0, **options}

    @endpoint.publisher(endpoint.broker())
    @broker.subscriber("q", **options)
    async def handle(body: int) -> int:
        return body

    return broker


async def until_each_row_has_failed(postgres: PostgresBackend, count: int) -> None:
    await until(postgres.rows, lambda found: [row.attempts_count > 0 for row in found] == [True] * count, seconds=60)


@pytest.mark.parametrize("endpoint", [*KEEPING, "nats"], indirect=True)
async def test_what_is_published_while_the_broker_is_down_arrives_when_it_is_back(
    postgres: PostgresBackend, endpoint: Endpoint
) -> None:
    broker = relaying(postgres, endpoint)
    async with endpoint.listening() as messages, started(broker):
        await publish(broker, postgres, 0)
        assert await (await messages.get()).decode() == 0
        await until_empty(postgres)
        await endpoint.server.stop()
        await publish(broker, postgres, *range(1, 6))
        await until_each_row_has_failed(postgres, 5)
        await endpoint.server.start()
        await until_empty(postgres)
        arrived = set[int]()
        while arrived != set(range(1, 6)):
            arrived.add(await (await messages.get()).decode())
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("endpoint", [*KEEPING, "nats"], indirect=True)
async def test_a_silent_broker_holds_a_worker_for_so_long_and_no_longer(
    postgres: PostgresBackend, endpoint: Endpoint
) -> None:
    broker = relaying(postgres, endpoint, publish_timeout=0.5)
    async with endpoint.listening() as messages, started(broker):
        await publish(broker, postgres, 0)
        await messages.get()
        await until_empty(postgres)
        endpoint.server.pause()
        try:
            await publish(broker, postgres, 1)
            await until_each_row_has_failed(postgres, 1)
        finally:
            endpoint.server.resume()
        await until_empty(postgres)
        assert await (await messages.get()).decode() == 1


@pytest.mark.parametrize("endpoint", ["rabbit"], indirect=True)
async def test_a_message_that_no_queue_takes_is_tried_again(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker, there = broker_on(postgres), endpoint.broker()
    exchange = RabbitExchange(f"e{endpoint.name}")
    publisher: Decorator = there.publisher(endpoint.name, exchange=exchange, persist=True)

    @publisher
    @broker.subscriber("q", retry_strategy=PATIENT)
    async def handle(body: int) -> int:
        return body

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_each_row_has_failed(postgres, 1)
        async with endpoint.broker() as operator:
            queue = await operator.declare_queue(RabbitQueue(endpoint.name, durable=True))
            await queue.bind(exchange.name, routing_key=endpoint.name)
        await until_empty(postgres)
    [message] = await endpoint.received(1)
    assert await message.decode() == 1


@pytest.mark.parametrize("endpoint", ["kafka"], indirect=True)
async def test_a_message_that_the_broker_refuses_ends_as_the_retry_strategy_says(
    postgres: PostgresBackend, endpoint: Endpoint
) -> None:
    broker = broker_on(postgres)

    @endpoint.publisher(endpoint.broker())
    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.05, max_attempts=2))
    async def handle(size: int) -> str:
        return "x" * size

    await publish(broker, postgres, 2_000_000, 3)
    async with started(broker):
        await until_empty(postgres)
    [dead] = await postgres.dead_letters()
    assert (dead.attempts_count, "MessageSizeTooLargeError" in (dead.last_exception or "")) == (2, True)
    [message] = await endpoint.received(1)
    assert await message.decode() == "xxx"


@pytest.mark.parametrize("endpoint", ["nats"], indirect=True)
async def test_a_client_that_gave_up_is_connected_anew(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker = broker_on(postgres)
    nats = endpoint.broker(max_reconnect_attempts=1, reconnect_time_wait=0)

    @endpoint.publisher(nats)
    @broker.subscriber("q", retry_strategy=PATIENT)
    async def handle(body: int) -> int:
        return body

    async with started(broker):
        client = nats._connection
        await endpoint.server.stop()
        await until(lambda: client.is_closed)
        await publish(broker, postgres, 1)
        await until_each_row_has_failed(postgres, 1)
        await endpoint.server.start()
        async with endpoint.listening() as messages:
            await until_empty(postgres)
            assert await (await messages.get()).decode() == 1
