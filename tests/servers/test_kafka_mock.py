import asyncio
import sys

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, MessageSizeTooLargeError
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker

from tests.servers.kafka_mock import KafkaMock

_SEND = """
import asyncio, sys
from aiokafka import AIOKafkaProducer

async def main(servers, topic):
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait(topic, b"hello")

asyncio.run(main(*sys.argv[1:]))
"""


async def kept(mock: KafkaMock, topic: str, number: int) -> list[bytes | None]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=mock.bootstrap_servers, auto_offset_reset="earliest")
    async with consumer, asyncio.timeout(60):
        return [(await consumer.getone()).value for _ in range(number)]


async def test_another_process_reaches_it_by_aiokafka(kafka_mock: KafkaMock, name: str) -> None:
    await kafka_mock.create_topic(name)
    command = (sys.executable, "-c", _SEND, kafka_mock.bootstrap_servers, name)
    process = await asyncio.create_subprocess_exec(*command)
    async with asyncio.timeout(60):
        assert await process.wait() == 0
    assert await kept(kafka_mock, name, 1) == [b"hello"]


@pytest.mark.parametrize("client", [KafkaBroker, ConfluentBroker], ids=["aiokafka", "confluent"])
async def test_brokers_publish_to_it(
    kafka_mock: KafkaMock, name: str, client: type[KafkaBroker] | type[ConfluentBroker]
) -> None:
    await kafka_mock.create_topic(name)
    async with client(kafka_mock.bootstrap_servers) as broker:
        await broker.publish("hello", name)
    assert await kept(kafka_mock, name, 1) == [b"hello"]


async def test_it_comes_back_with_its_data_when_it_was_stopped(kafka_mock: KafkaMock, name: str) -> None:
    await kafka_mock.create_topic(name)
    async with KafkaBroker(kafka_mock.bootstrap_servers) as broker:
        await broker.publish("hello", name)
    await kafka_mock.stop()
    producer = AIOKafkaProducer(bootstrap_servers=kafka_mock.bootstrap_servers)
    with pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()
    await kafka_mock.start()
    assert await kept(kafka_mock, name, 1) == [b"hello"]


async def test_it_comes_back_empty_when_it_was_killed(kafka_mock: KafkaMock, name: str) -> None:
    await kafka_mock.create_topic(name)
    async with KafkaBroker(kafka_mock.bootstrap_servers) as broker:
        await broker.publish("lost", name)
    await kafka_mock.kill()
    await kafka_mock.start()
    await kafka_mock.create_topic(name)
    async with KafkaBroker(kafka_mock.bootstrap_servers) as broker:
        await broker.publish("hello", name)
    assert await kept(kafka_mock, name, 1) == [b"hello"]


async def test_it_fails_as_it_is_told(kafka_mock: KafkaMock, name: str) -> None:
    await kafka_mock.create_topic(name)
    async with KafkaBroker(kafka_mock.bootstrap_servers) as broker:
        await kafka_mock.fail(10)
        with pytest.raises(MessageSizeTooLargeError):
            await broker.publish("too large", name)
        await kafka_mock.fail(7, 7)
        await broker.publish("at the third attempt", name)
    assert await kept(kafka_mock, name, 1) == [b"at the third attempt"]


async def test_it_is_late_when_told(kafka_mock: KafkaMock, name: str) -> None:
    await kafka_mock.create_topic(name)
    async with KafkaBroker(kafka_mock.bootstrap_servers) as broker:
        await kafka_mock.delay(60_000)
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await broker.publish("late", name)
        finally:
            await kafka_mock.delay(0)
