"""What becomes of a message that the broker will not take: its key waits or goes on without it, and no other does."""

from typing import Any
from unittest.mock import AsyncMock

import aio_pika
import pytest
import redis.asyncio
from faststream.rabbit import Channel, RabbitBroker
from sqlalchemy import insert, text

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay, by_header
from faststream_outbox.relay.targets import rabbit
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import (
    PARTITIONS,
    ConfluentEndpoint,
    Endpoint,
    KafkaEndpoint,
    NatsStream,
    RabbitQueueEndpoint,
    RedisStream,
)
from tests.relay.memory_target import Memory
from tests.waiting import until_empty, until_rows

KINDS = (KafkaEndpoint, ConfluentEndpoint, RabbitQueueEndpoint, NatsStream, RedisStream)
every_server = pytest.mark.parametrize("endpoint", KINDS, indirect=True, ids=lambda kind: kind.__name__)
both_kafkas = pytest.mark.parametrize("endpoint", KINDS[:2], indirect=True, ids=lambda kind: kind.__name__)


async def publish(
    broker: OutboxBroker, postgres: PostgresBackend, numbers: range, *, bad: set[int], to: Endpoint
) -> None:
    """Publish numbers of ten keys; the bad ones go to a destination that does not exist."""
    async with postgres.transaction() as session:
        for number in numbers:
            where = f"{to.destination}-missing" if number in bad else to.destination
            headers = {"where": where}
            await broker.publish(b"%d" % number, queue="q", key=f"k{number % 10}", headers=headers, session=session)


async def spoil(endpoint: Endpoint) -> None:
    """Have nothing arrive at the missing endpoint: most brokers know of none, and Redis has something else there."""
    if isinstance(endpoint, RedisStream):
        client = redis.asyncio.from_url(endpoint.running.url)
        await client.set(f"{endpoint.name}-missing", "no stream")
        await client.aclose()


async def dead_bodies(postgres: PostgresBackend) -> list[bytes]:
    return [dead.payload for dead in await postgres.dead_letters()]


@every_server
async def test_a_refused_message_is_dead_and_its_key_goes_on(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    await spoil(endpoint)
    records = Records()
    broker = broker_on(postgres, records)
    await publish(broker, postgres, range(60), bad={23}, to=endpoint)
    async with endpoint.listening() as inbox, Relay(broker, to=endpoint.broker(), routes={"q": by_header("where")}):
        await inbox.until(59)
        await until_empty(postgres)
    assert await dead_bodies(postgres) == [b"23"]
    [dead] = await postgres.dead_letters()
    assert dead.failure_reason == "rejected"
    # What is kept is what is told.
    why = str(dead.last_exception).partition(": ")[2].partition("\n")[0]
    [line] = records.named("dead_lettered")
    assert why.rstrip(".") in line.getMessage()
    if isinstance(endpoint, RedisStream):  # whose errors come as values, so there is no traceback to keep
        assert str(dead.last_exception).count(why) == 1
    if isinstance(endpoint, NatsStream):
        assert why.startswith(f"No JetStream stream has the subject '{endpoint.destination}-missing': create one")
    assert inbox.by_key == {f"k{k}": [b"%d" % n for n in range(k, 60, 10) if n != 23] for k in range(10)}


@every_server
async def test_a_refused_message_may_park_its_key(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    await spoil(endpoint)
    broker = broker_on(postgres)
    await publish(broker, postgres, range(60), bad={23}, to=endpoint)
    relay = Relay(broker, to=endpoint.broker(), routes={"q": by_header("where")}, on_dead="park")
    async with endpoint.listening() as inbox, relay:
        await inbox.until(56)
        await until_rows(postgres, 4)
        async with postgres.transaction() as session:
            [key] = await broker.fetch_keys(session=session, state="parked")
            assert (key.key, key.waiting) == ("k3", 3)
            assert await broker.skip_key(queue="q", key="k3", reason="no such endpoint", session=session)
        await inbox.until(59)
        await until_empty(postgres)
    assert await dead_bodies(postgres) == [b"23"]
    assert inbox.by_key["k3"] == [b"3", b"13", b"33", b"43", b"53"]


@both_kafkas
@pytest.mark.parametrize("on_dead", ["skip", "park"])
async def test_who_shares_a_batch_with_one_too_large_arrives(
    postgres: PostgresBackend, endpoint: KafkaEndpoint, on_dead: Any
) -> None:
    """Kafka refuses batches: the limit of a topic is known to it alone."""
    endpoint.name += "-small"
    await endpoint.running.create_topic(endpoint.name, PARTITIONS, max_message_bytes="4000")
    records = Records()
    broker = broker_on(postgres, records)
    async with postgres.transaction() as session:
        bodies = [b"%d" % n + b" " * (8000 if n == 23 else 200) for n in range(200)]
        await broker.publish_batch(*bodies, queue="q", keys=[f"k{n % 10}" for n in range(200)], session=session)
        await broker.publish_batch(*(b"%d" % n for n in range(200, 300)), queue="q", session=session)
    relay = Relay(broker, to=endpoint.broker(), routes={"q": endpoint.name}, on_dead=on_dead)
    async with endpoint.listening() as inbox, relay:
        if on_dead == "park":
            await until_rows(postgres, 18)  # the refused one, and those behind it
        else:
            await until_empty(postgres)
        await inbox.until(282 if on_dead == "park" else 299)
    arrived = [int(body) for body in inbox.bodies]
    assert sorted(arrived) == sorted(set(arrived))
    assert 23 not in arrived
    for k in range(10):
        numbers = [int(body) for body in inbox.by_key[f"k{k}"]]
        if k == 3:
            assert numbers == ([3, 13] if on_dead == "park" else [n for n in range(3, 200, 10) if n != 23])
        else:
            assert numbers == list(range(k, 200, 10))
    assert records.named("relay_paused") == []


async def test_a_row_without_a_destination_is_refused(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        await broker.publish(b"1", queue="q", key="a", session=session)
        await broker.publish(b"2", queue="q", key="a", headers={"where": "there"}, session=session)
        await broker.publish(b"3", queue="r", key="a", session=session)
    endpoint = Memory()

    def fail(_: object) -> str:
        raise LookupError("nowhere")

    async with Relay(broker, to=endpoint, routes={"q": by_header("where"), "r": fail}):
        await until_empty(postgres)
    assert sorted(await dead_bodies(postgres)) == [b"1", b"3"]
    assert endpoint.sent == [b"2"]
    assert {str(dead.last_exception).split(":")[0].rpartition(".")[2] for dead in await postgres.dead_letters()} == {
        "UnroutableError"
    }


async def test_headers_that_are_none_are_refused(postgres: PostgresBackend) -> None:
    """An insert by SQL may write any JSON there."""
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        await session.execute(
            insert(postgres.outbox_table),
            [
                {"queue": "q", "payload": b"%d" % number, "entity_key": key, "headers": [1] if number == 1 else None}
                for number in range(3)
                for key in ("a", None)
            ],
        )
    endpoint = Memory()
    async with Relay(broker, to=endpoint, routes={"q": "there"}):
        await until_empty(postgres)
    assert sorted(endpoint.sent) == [b"0", b"0", b"2", b"2"]
    assert await dead_bodies(postgres) == [b"1", b"1"]


@pytest.mark.parametrize("created_at", ["infinity", "-infinity", "0044-03-15 BC", "200000-01-01"])
async def test_a_time_that_no_event_has_is_refused(postgres: PostgresBackend, created_at: str) -> None:
    """CloudEvents have a time, and an insert by SQL may write any there."""
    records = Records()
    broker = broker_on(postgres, records)
    table = postgres.outbox_table.fullname
    async with postgres.transaction() as session:
        await session.execute(
            text(
                f"INSERT INTO {table} (queue, payload, entity_key, created_at) VALUES ('q', 'odd', 'a', '{created_at}')"
            )
        )
        await broker.publish(b"next", queue="q", key="a", session=session)
    endpoint = Memory()
    async with Relay(broker, to=endpoint, routes={"q": "there"}, cloudevents=True):
        await until_empty(postgres)
    assert endpoint.sent == [b"next"]
    assert await dead_bodies(postgres) == [b"odd"]
    assert records.named("retry_scheduled") == []


@pytest.mark.parametrize("endpoint", [RabbitQueueEndpoint], indirect=True)
async def test_a_broker_without_confirmations_is_refused(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    to = RabbitBroker(endpoint.running.url, logger=None, default_channel=Channel(publisher_confirms=False))
    relay = Relay(broker_on(postgres), to=to, routes={"q": endpoint.destination})
    with pytest.raises(ValueError, match="publisher_confirms"):
        await relay.start()
    await relay.stop()


@pytest.mark.parametrize("endpoint", [RabbitQueueEndpoint], indirect=True)
@pytest.mark.parametrize(
    ("exchange", "why"),
    [("missing", "NOT_FOUND - no exchange"), ("internal", "ACCESS_REFUSED - cannot publish to internal exchange")],
    ids=["missing", "internal"],
)
async def test_an_exchange_that_refuses_is_not_tried_by_each_message(
    postgres: PostgresBackend, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, exchange: str, why: str
) -> None:
    """Each try costs a channel."""
    monkeypatch.setattr(rabbit, "_REFUSED_SECONDS", 60.0)
    name = f"{endpoint.name}-{exchange}"
    if exchange == "internal":
        async with await aio_pika.connect(endpoint.running.url) as connection:
            await (await connection.channel()).declare_exchange(name, internal=True)
    broker, to = broker_on(postgres), endpoint.broker()
    async with Relay(broker, to=to, routes={"q": by_header("where")}):
        for number in range(3):
            async with postgres.transaction() as session:
                await broker.publish(number, queue="q", headers={"where": f"{name}/key{number}"}, session=session)
            await until_empty(postgres)
            tried = AsyncMock()
            monkeypatch.setattr(aio_pika.Exchange, "publish", tried)
    assert not tried.called
    letters = await postgres.dead_letters()
    assert [letter.payload for letter in letters] == [b"0", b"1", b"2"]
    assert all(why in (letter.last_exception or "") for letter in letters)
