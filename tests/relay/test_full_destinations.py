"""A destination that is full waits by itself: others get what is theirs, once, and what they confirmed is settled."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import nats
import pytest

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay, Route, by_header
from faststream_outbox.relay.destinations import NAMED
from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import NotAcceptedError
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import Endpoint, NatsStream, RabbitQueueEndpoint
from tests.relay.memory_target import Memory
from tests.waiting import until, until_empty, until_rows

KINDS = (RabbitQueueEndpoint, NatsStream)
every_server = pytest.mark.parametrize("endpoint", KINDS, indirect=True, ids=lambda kind: kind.__name__)
FIXED = {"q": "good", "r": "full"}


@asynccontextmanager
async def full_destination(endpoint: Endpoint) -> AsyncIterator[tuple[str, Callable[[], Awaitable[Any]]]]:
    """Make a destination beside the endpoint's that is full; yield its name, and what makes room there."""
    name = f"{endpoint.name}-full"
    if isinstance(endpoint, RabbitQueueEndpoint):
        async with await aio_pika.connect(endpoint.running.url) as connection:
            channel = await connection.channel()
            arguments: Any = {"x-max-length": 1, "x-overflow": "reject-publish"}
            queue = await channel.declare_queue(name, durable=True, arguments=arguments)
            await channel.default_exchange.publish(aio_pika.Message(b""), name)

            async def take(message: Any) -> None:
                await message.ack()

            yield name, lambda: queue.consume(take)
    else:
        client = await nats.connect(endpoint.running.url)
        stream = client.jetstream()
        limits: dict[str, Any] = {"name": name, "subjects": [name], "max_msgs": 1, "discard": "new"}
        await stream.add_stream(**limits)
        await stream.publish(name, b"")
        yield name, lambda: stream.update_stream(**{**limits, "max_msgs": 1000})
        await client.close()


async def publish(broker: OutboxBroker, postgres: PostgresBackend, count: int, *, good: str, full: str) -> None:
    """Publish rows for both destinations in turn, with keys and without, to one queue by header and to two."""
    async with postgres.transaction() as session:
        for number in range(count):
            where = full if number % 2 else good
            key = f"k{number % 30}" if number % 3 else None
            queue = ("mixed", "r" if number % 2 else "q")[number // 2 % 2]
            await broker.publish(b"%d" % number, queue=queue, key=key, headers={"where": where}, session=session)


@every_server
async def test_a_healthy_destination_gets_each_message_once_while_another_is_full(
    postgres: PostgresBackend, endpoint: Endpoint
) -> None:
    records = Records()
    broker = broker_on(postgres, records)
    async with full_destination(endpoint) as (full, make_room), endpoint.listening() as inbox:
        routes: dict[str, Route] = {"mixed": by_header("where"), "q": endpoint.destination, "r": full}
        for restart in range(3):
            await publish(broker, postgres, 120, good=endpoint.destination, full=full)
            async with Relay(broker, to=endpoint.broker(), routes=routes) as relay:
                await inbox.until(60 * (restart + 1))
                await until(lambda: relay.paused_destinations)
                assert list(relay.paused_destinations) == [full]
                assert relay.alive
                await until_rows(postgres, 60 * (restart + 1))
        assert len(inbox.messages) == 180
        rows = await postgres.rows()
        assert {(row.headers or {})["where"] for row in rows} == {full}
        assert {row.attempts_count for row in rows} == {0}
        assert {row.acquired_token for row in rows} == {None}, "a stop gives them back"
        assert [record.destination for record in records.named("destination_paused")][:1] == [full]
        assert records.named("relay_paused") == []
        await make_room()
        async with Relay(broker, to=endpoint.broker(), routes=routes) as relay:
            await until_empty(postgres)
            await until(lambda: not relay.paused)
    assert len(inbox.messages) == 180
    assert await postgres.dead_letters() == []


class Full(Memory):
    """Has destinations that accept nothing."""

    def __init__(self, *full: str) -> None:
        super().__init__()
        self.full = set(full)
        self.tries = 0

    def _send(self, message: Outgoing) -> Exception | None:
        if message.destination in self.full:
            self.tries += 1
            return NotAcceptedError("full")
        return super()._send(message)


@pytest.mark.parametrize("key", ["k", None], ids=["with keys", "without keys"])
async def test_a_queue_of_a_full_destination_is_not_claimed(postgres: PostgresBackend, key: str | None) -> None:
    """Its rows would be claimed and given back without end; one call keeps what it has, and tries."""
    broker, target = broker_on(postgres), Full("full")
    async with postgres.transaction() as session:
        for number in range(50):
            name = None if key is None else f"{key}{number}"
            await broker.publish(b"%d" % number, queue="r", key=name, session=session)
    options: dict[str, Any] = {
        "max_workers": 4,
        "max_records": 2,
        "min_fetch_interval": 0.02,
        "max_fetch_interval": 0.1,
    }
    async with Relay(broker, to=target, routes=FIXED, **options) as relay:
        await until(lambda: target.tries >= 20)
        claims = await postgres.one("SELECT sum(deliveries_count) FROM outbox")
        assert int(str(claims)) <= 2, "only what the one call has in hand"
        async with postgres.transaction() as session:
            await broker.publish(b"good", queue="q", session=session)
        await until(lambda: target.sent == [b"good"])
        assert set(relay.paused_destinations) == {"full"}
        target.full.clear()
        await until_empty(postgres)
        assert not relay.paused
    assert sorted(target.sent) == sorted([b"good", *(b"%d" % number for number in range(50))])


async def test_rows_before_one_that_waits_are_settled(postgres: PostgresBackend) -> None:
    broker, target = broker_on(postgres), Full("full")
    async with postgres.transaction() as session:
        for number in range(10):
            headers = {"where": "full" if number == 6 else "good"}
            await broker.publish(b"%d" % number, queue="q", key="k", headers=headers, session=session)
    async with Relay(broker, to=target, routes={"q": by_header("where")}):
        await until_rows(postgres, 4)
        await asyncio.sleep(0.3)
        assert target.sent == [b"%d" % number for number in range(6)], "none is sent before the one that waits"
        target.full.clear()
        await until_empty(postgres)
    assert target.sent == [b"%d" % number for number in range(10)]


@every_server
async def test_one_worker_is_enough_for_a_full_destination_and_another(
    postgres: PostgresBackend, endpoint: Endpoint
) -> None:
    broker = broker_on(postgres)
    async with full_destination(endpoint) as (full, make_room), endpoint.listening() as inbox:
        routes: dict[str, Route] = {"mixed": by_header("where"), "q": endpoint.destination, "r": full}
        async with Relay(broker, to=endpoint.broker(), routes=routes, max_workers=1) as relay:
            await publish(broker, postgres, 120, good=endpoint.destination, full=full)
            await inbox.until(60)
            await until_rows(postgres, 60)
            assert list(relay.paused_destinations) == [full]
            await publish(broker, postgres, 120, good=endpoint.destination, full=full)
            await inbox.until(120)
            await make_room()
            await until_empty(postgres)
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("key", ["k", None], ids=["with keys", "without keys"])
async def test_many_full_destinations_leave_workers_to_others(postgres: PostgresBackend, key: str | None) -> None:
    target = Full(*(f"full{number}" for number in range(12)))
    broker = broker_on(postgres)
    async with Relay(broker, to=target, routes={"q": by_header("where")}, max_workers=4, max_records=1) as relay:
        async with postgres.transaction() as session:
            for number in range(36):
                where, each = f"full{number % 12}", key and f"{key}{number}"
                await broker.publish(b"%d" % number, queue="q", key=each, headers={"where": where}, session=session)
        await until(lambda: len(relay.paused_destinations) == 12)
        async with postgres.transaction() as session:
            for number in range(20):
                each = key and f"good{number}"  # a key waits for its first row
                await broker.publish(b"good", queue="q", key=each, headers={"where": "good"}, session=session)
        await until(lambda: target.sent.count(b"good") == 20)
        target.full.clear()
        await until_empty(postgres)
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("max_workers", [1, 4])
async def test_many_full_destinations_do_not_take_all_workers(postgres: PostgresBackend, max_workers: int) -> None:
    """A call keeps the rows of such a destination, and its worker: some have to be left for the others."""
    full = [f"full-{number}" for number in range(10)]
    broker, target = broker_on(postgres), Full(*full)
    async with postgres.transaction() as session:
        for number, where in enumerate(full):
            headers = {"where": where}
            await broker.publish(b"%d" % number, queue="q", key=where, headers=headers, session=session)
    async with Relay(broker, to=target, routes={"q": by_header("where")}, max_workers=max_workers) as relay:
        await until(lambda: len(relay.paused_destinations) == 10)
        async with postgres.transaction() as session:
            await broker.publish(b"good", queue="q", key="good", headers={"where": "good"}, session=session)
        await until(lambda: target.sent == [b"good"])
        target.full.clear()
        await until_empty(postgres)
    assert len(target.sent) == 11
    assert await postgres.dead_letters() == []


async def test_of_very_many_full_destinations_the_log_names_only_the_first(postgres: PostgresBackend) -> None:
    """A full stream may have a subject for each key."""
    full = [f"full-{number}" for number in range(4 * NAMED)]
    records = Records()
    broker, target = broker_on(postgres, records), Full(*full)
    async with postgres.transaction() as session:
        for number, where in enumerate(full):
            headers = {"where": where}
            await broker.publish(b"%d" % number, queue="q", key=where, headers=headers, session=session)
    async with Relay(broker, to=target, routes={"q": by_header("where")}) as relay:
        await until(lambda: len(relay.paused_destinations) == len(full))
        messages = [record.getMessage() for record in records.named("destination_paused")]
        assert len(messages) == NAMED + 2
        assert messages[NAMED].startswith(f"{NAMED + 1} destinations accept nothing")
        assert messages[NAMED + 1].startswith(f"{2 * NAMED + 2} destinations accept nothing")
        target.full.clear()
        await until(lambda: not relay.paused_destinations)
    messages = [record.getMessage() for record in records.named("destination_resumed")]
    assert len(messages) == NAMED + 1
    assert f"Of many destinations {NAMED} are left that accept nothing." in messages
