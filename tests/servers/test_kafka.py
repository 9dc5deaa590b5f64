import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, MessageSizeTooLargeError
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker, TopicPartition

from tests.servers.kafka import ELSEWHERE, Kafka, KafkaCluster, KafkaElsewhere
from tests.servers.round_trips import echoed, received
from tests.waiting import until


@pytest.mark.parametrize("client", [KafkaBroker, ConfluentBroker], ids=["aiokafka", "confluent"])
async def test_a_message_goes_there_and_back(kafka_server: KafkaCluster, name: str, client: Any) -> None:
    await kafka_server.create_topic(name)
    broker = client(kafka_server.bootstrap_servers)
    subscriber = broker.subscriber(name, group_id=name, auto_offset_reset="earliest")
    assert await echoed(broker, subscriber, "hello", topic=name) == ["hello"]


async def test_a_group_shares_a_topic(kafka_server: KafkaCluster, name: str) -> None:
    await kafka_server.create_topic(name, partitions=2)
    consumers = [
        AIOKafkaConsumer(name, bootstrap_servers=kafka_server.bootstrap_servers, group_id=name) for _ in range(2)
    ]
    async with consumers[0], consumers[1], asyncio.timeout(60):
        await until(lambda: [len(consumer.assignment()) for consumer in consumers] == [1, 1])


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_it_comes_back_with_its_data(own_kafka_server: Kafka, name: str, end: str) -> None:
    await own_kafka_server.create_topic(name)
    async with KafkaBroker(own_kafka_server.bootstrap_servers) as broker:
        await broker.publish("hello", name)
    await getattr(own_kafka_server, end)()
    producer = AIOKafkaProducer(bootstrap_servers=own_kafka_server.bootstrap_servers)
    with pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()
    await own_kafka_server.start()
    broker = KafkaBroker(own_kafka_server.bootstrap_servers)
    subscriber = broker.subscriber(partitions=[TopicPartition(name, 0)], auto_offset_reset="earliest")
    assert await received(broker, subscriber) == ["hello"]


async def test_one_that_runs_elsewhere_serves_as_well(
    own_kafka_server: Kafka, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ELSEWHERE, own_kafka_server.bootstrap_servers)
    elsewhere = KafkaElsewhere.given()
    assert elsewhere is not None
    await elsewhere.create_topic(name)
    async with KafkaBroker(elsewhere.bootstrap_servers) as broker:
        await broker.publish("hello", name)


async def test_a_topic_that_nobody_created_is_unknown(own_kafka_server: Kafka, name: str) -> None:
    async with KafkaBroker(own_kafka_server.bootstrap_servers, request_timeout_ms=1000) as broker:
        with pytest.raises(KafkaError):
            await broker.publish("hello", name)


async def test_a_message_may_be_too_large(own_kafka_server: Kafka, name: str) -> None:
    await own_kafka_server.create_topic(name)
    broker = KafkaBroker(own_kafka_server.bootstrap_servers, max_request_size=10_000_000)
    async with broker:
        with pytest.raises(MessageSizeTooLargeError):
            await broker.publish("x" * 2_000_000, name)
