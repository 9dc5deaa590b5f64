"""The brokers that the program sends to, but for Redis, to which the other tests send."""

import asyncio
from pathlib import Path
from uuid import uuid4

import nats
import pytest
from aio_pika import connect
from aiokafka import AIOKafkaConsumer

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.cli.programs import TIMEOUT, relaying
from tests.cli.relay.rows import in_order, publish, publish_without_keys
from tests.servers.kafka import Kafka
from tests.servers.kafka_mock import KafkaMock
from tests.servers.nats import Nats
from tests.servers.plugin import Servers
from tests.servers.rabbitmq import RabbitMQ
from tests.waiting import until_empty

# So many rows are relayed, those from the second number on without a key.
ROWS, KEYED = 120, 100


async def relay(outbox: PostgresBackend, database: Database, to: str, destination: str, folder: Path) -> None:
    """Relay rows, ordered and unordered."""
    await publish(outbox, range(KEYED))
    await publish_without_keys(outbox, range(KEYED, ROWS))
    options = ("--to", to, "--route", f"orders={destination}")
    with relaying(*options, folder=folder, OUTBOX_DSN=database.dsn) as program:
        await program.wait_for_answer("/health/ready", 200)
        await until_empty(outbox)
        assert await program.stop() == 0, program.output


def assert_complete(numbers: list[int]) -> None:
    assert sorted(numbers) == list(range(ROWS))
    assert in_order(number for number in numbers if number < KEYED)


async def test_nats(outbox: PostgresBackend, outbox_postgres: Database, nats_server: Nats, tmp_path: Path) -> None:
    name = f"s{uuid4().hex}"
    client = await nats.connect(nats_server.url)
    stream = client.jetstream()
    await stream.add_stream(name=name, subjects=[name])
    await relay(outbox, outbox_postgres, nats_server.url, name, tmp_path)
    subscription = await stream.subscribe(name, ordered_consumer=True)
    numbers = [int((await subscription.next_msg(timeout=TIMEOUT)).data) for _ in range(ROWS)]
    await client.close()
    assert_complete(numbers)


@pytest.fixture(params=[Kafka, KafkaMock], ids=lambda kind: kind.__name__)
async def kafka(servers: Servers, request: pytest.FixtureRequest) -> Kafka | KafkaMock:
    started: Kafka | KafkaMock = await servers.up(request.param, request)
    return started


@pytest.mark.parametrize("scheme", ["kafka", "kafka+confluent"])
async def test_kafka(
    outbox: PostgresBackend, outbox_postgres: Database, kafka: Kafka | KafkaMock, tmp_path: Path, scheme: str
) -> None:
    topic = f"t{uuid4().hex}"
    await kafka.create_topic(topic, partitions=3)
    await relay(outbox, outbox_postgres, f"{scheme}://{kafka.bootstrap_servers}", topic, tmp_path)
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(TIMEOUT):
            numbers = [int((await consumer.getone()).value) for _ in range(ROWS)]
    finally:
        await consumer.stop()
    assert_complete(numbers)


async def test_rabbitmq(
    outbox: PostgresBackend, outbox_postgres: Database, rabbitmq_server: RabbitMQ, tmp_path: Path
) -> None:
    async with await connect(rabbitmq_server.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(f"q{uuid4().hex}", durable=True)
        await relay(outbox, outbox_postgres, rabbitmq_server.url, queue.name, tmp_path)
        received = [await queue.get(timeout=TIMEOUT, no_ack=True) for _ in range(ROWS)]
        await queue.delete()
    numbers = [int(message.body) for message in received if message]
    assert_complete(numbers)
