"""RabbitMQ is silent, or closes the channel."""

from typing import Any

import aio_pika
import pytest
from faststream.rabbit import RabbitBroker

from faststream_outbox.relay import Relay, relay
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.proxy import proxying
from tests.relay.endpoints import RabbitQueueEndpoint
from tests.waiting import until, until_empty, until_rows

only_rabbit = pytest.mark.parametrize("endpoint", [RabbitQueueEndpoint], indirect=True, ids=["rabbit"])


@only_rabbit
async def test_starts_that_are_given_up_leave_no_connection_behind(
    postgres: PostgresBackend, endpoint: RabbitQueueEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aio-pika's own connection would try on, and each would reach RabbitMQ when that answers again."""
    monkeypatch.setattr(relay, "_CONNECT_SECONDS", 0.2)
    async with proxying(endpoint.running.url) as proxy:
        proxy.freeze()
        to = RabbitBroker(proxy.url(endpoint.running.url), logger=None)
        async with Relay(broker_on(postgres), to=to, routes={"q": endpoint.destination}) as running:
            for _ in range(3):
                assert not await running.ping(0.2)
            proxy.thaw()
            await until(lambda: not running.paused)
            await until(lambda: proxy.connections == 1)
        await until(lambda: proxy.connections == 0)


async def publish(broker: Any, postgres: PostgresBackend, queue: str, count: int) -> None:
    async with postgres.transaction() as session:
        keys = [f"{queue}{number % 20}" if number % 2 else None for number in range(count)]
        bodies = [b"%d" % number for number in range(count)]
        await broker.publish_batch(*bodies, queue=queue, keys=keys, session=session)


@only_rabbit
async def test_rows_for_missing_exchanges_repeat_and_pause_no_others(
    postgres: PostgresBackend, endpoint: RabbitQueueEndpoint
) -> None:
    """RabbitMQ closes the channel on each, with all that is on its way there."""
    records = Records()
    broker = broker_on(postgres, records)
    for queue, count in (("good", 300), ("bad", 200), ("good", 300)):
        await publish(broker, postgres, queue, count)
    routes: Any = {"bad": lambda row: f"{endpoint.name}-{row.id}/key", "good": endpoint.destination}
    async with endpoint.listening() as inbox, Relay(broker, to=endpoint.broker(), routes=routes):
        await until_empty(postgres)
        await inbox.until(600)
    assert len(inbox.messages) == 600
    assert {letter.queue for letter in await postgres.dead_letters()} == {"bad"}
    assert len(await postgres.dead_letters()) == 200
    assert records.named("destination_paused") == records.named("relay_paused") == []


@only_rabbit
async def test_an_exchange_that_is_deleted_while_rows_flow_costs_others_nothing(
    postgres: PostgresBackend, endpoint: RabbitQueueEndpoint
) -> None:
    broker, name = broker_on(postgres), f"{endpoint.name}-exchange"
    async with await aio_pika.connect(endpoint.running.url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(name, "fanout")
        await (await channel.get_queue(endpoint.destination)).bind(exchange)
        routes = {"bad": f"{name}/key", "good": endpoint.destination}
        async with endpoint.listening() as inbox, Relay(broker, to=endpoint.broker(), routes=routes):
            await publish(broker, postgres, "bad", 10)
            await inbox.until(10)
            await publish(broker, postgres, "good", 2000)
            await until_rows(postgres, 1900)
            await exchange.delete()
            await publish(broker, postgres, "bad", 100)
            await until_empty(postgres)
            await inbox.until(2010)
    assert [letter.queue for letter in await postgres.dead_letters()] == ["bad"] * 100


@only_rabbit
async def test_a_fan_out_to_a_full_queue_is_tried_with_one_row(
    postgres: PostgresBackend, endpoint: RabbitQueueEndpoint
) -> None:
    """RabbitMQ gives each try to the queues that have room, and then refuses it for the full one."""
    broker, name = broker_on(postgres), f"{endpoint.name}-fan"
    async with await aio_pika.connect(endpoint.running.url) as connection:
        channel = await connection.channel()
        arguments: Any = {"x-max-length": 1, "x-overflow": "reject-publish"}
        full = await channel.declare_queue(f"{name}-full", durable=True, arguments=arguments)
        healthy = await channel.get_queue(endpoint.destination)
        exchange = await channel.declare_exchange(name, "fanout")
        await channel.default_exchange.publish(aio_pika.Message(b""), full.name)
        for queue in (full, healthy):
            await queue.bind(exchange)

        async def copies() -> int:
            found = await channel.declare_queue(endpoint.destination, passive=True)
            return found.declaration_result.message_count or 0

        async with postgres.transaction() as session:
            await broker.publish_batch(*[b"x"] * 50, queue="q", session=session)
        async with Relay(broker, to=endpoint.broker(), routes={"q": f"{name}/"}):
            assert await until(copies, lambda count: count > 52) == 53
            await full.unbind(exchange)
            await until_empty(postgres)
    assert await postgres.dead_letters() == []
