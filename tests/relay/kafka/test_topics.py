"""A topic that is deleted while rows are relayed to it, or that accepts only some messages."""

import asyncio
from typing import Any
from uuid import uuid4

import psutil
import pytest
from faststream.kafka import KafkaBroker

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets import kafka_producer, kafka_topics, make_target
from faststream_outbox.relay.targets.base import NotAcceptedError, OutageError
from faststream_outbox.relay.targets.kafka import KafkaTarget
from tests.backends import PostgresBackend
from tests.relay.endpoints import PARTITIONS
from tests.relay.faults.arrivals import arrivals_of
from tests.relay.kafka.load import CLIENTS, Load, both_clients, topic_on
from tests.servers.kafka import Kafka
from tests.servers.kafka_cluster import delete_topic
from tests.servers.kafka_mock import KafkaMock
from tests.waiting import until, until_empty

_DUPLICATE_SEQUENCE_NUMBER = 46


@both_clients
async def test_a_topic_is_deleted(
    postgres: PostgresBackend, own_kafka_server: Kafka, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are refused as those of a topic that never was, and none is lost; rows for other topics are sent."""
    monkeypatch.setattr(kafka_topics, "_MISSING_SECONDS", 1.0)
    server, load = own_kafka_server, Load(postgres)
    gone, other = f"gone-{client}", f"other-{client}"
    for topic in (gone, other):
        await server.create_topic(topic, PARTITIONS)
    to = CLIENTS[client](server.bootstrap_servers, logger=None)
    async with load.relayed(to, {"q": gone, "r": other}):
        await load.publish("q")
        await until_empty(postgres)
        await delete_topic(server, gone)
        lost = await load.publish("q")
        await load.publish("r")
        await until_empty(postgres)
        dead = await load.dead()
        assert set(dead) == set(lost)
        assert {f"There is no topic '{gone}'" in why for why in dead.values()} == {True}
        await server.create_topic(gone, PARTITIONS)
        # A topic that was missing is asked for again after a while.
        await asyncio.sleep(kafka_topics._MISSING_SECONDS)
        sent = await load.publish("q")
        await until_empty(postgres)
    arrived = [item.body.decode() async for item in arrivals_of(topic_on(server, gone)).read()]
    assert sorted(arrived) == sorted(sent)
    assert await load.violations("r", topic_on(server, other)) == []
    assert set(await load.dead()) == set(lost)


@both_clients
async def test_a_topic_that_seems_to_be_missing_for_a_moment_refuses_nothing(
    postgres: PostgresBackend, own_kafka_server: Kafka, client: str
) -> None:
    """A topic is deleted, and created anew before the relay can be sure that it is gone."""
    server, load, topic = own_kafka_server, Load(postgres), f"moment-{client}"
    await server.create_topic(topic, PARTITIONS)
    to = CLIENTS[client](server.bootstrap_servers, logger=None)
    async with load.relayed(to, {"q": topic}):
        await load.publish("q")
        await until_empty(postgres)
        await delete_topic(server, topic)
        sent = await load.publish("q")
        await asyncio.sleep(1.0)
        await server.create_topic(topic, PARTITIONS)
        await until_empty(postgres)
    arrived = [item.body.decode() async for item in arrivals_of(topic_on(server, topic)).read()]
    assert set(arrived) == set(sent)
    assert await load.dead() == {}


async def test_what_goes_to_a_partition_that_a_new_topic_does_not_have_waits(own_kafka_server: Kafka) -> None:
    """Rows may be in line for a partition while their topic is created anew with fewer."""
    await own_kafka_server.create_topic("fewer", 1)
    target = KafkaTarget(CLIENTS["aiokafka"](own_kafka_server.bootstrap_servers, logger=None))
    await target.start()
    message = Outgoing("fewer", b"1", {}, "k", "1", "1")
    try:
        batch = target.new_batch()
        kafka_producer.append(batch, message)
        with pytest.raises(NotAcceptedError):
            await target.send_batch(batch, "fewer", 5)
        assert await target.send_each([message]) == [None]
    finally:
        await target.stop()


async def test_a_message_without_an_offset_is_sent_again(kafka_mock: KafkaMock) -> None:
    """In a topic created anew, Kafka may accept the second of two batches first, and call the first a duplicate.

    librdkafka says then that the first was stored. aiokafka has one batch for a partition on its way.
    """
    target = make_target(CLIENTS["confluent"](kafka_mock.bootstrap_servers, logger=None))
    await target.start()
    message = Outgoing("duplicates", b"1", {}, "k", "1", "1")
    try:
        assert await target.send_each([message]) == [None]
        await kafka_mock.fail(_DUPLICATE_SEQUENCE_NUMBER)
        [error] = await target.send_each([message])
        assert isinstance(error, NotAcceptedError)
        assert "gave no offset" in str(error)
        assert await target.send_each([message]) == [None]
    finally:
        await target.stop()


@both_clients
@pytest.mark.parametrize("on_dead", ["skip", "park"])
async def test_a_compacted_topic_takes_no_message_without_a_key(
    postgres: PostgresBackend, own_kafka_server: Kafka, client: str, on_dead: Any
) -> None:
    """Kafka fails the whole batch of such a message, with a code that aiokafka does not know."""
    server, load, topic = own_kafka_server, Load(postgres), f"compacted-{client}-{on_dead}"
    await server.create_topic(topic, PARTITIONS, cleanup_policy="compact")
    to = CLIENTS[client](server.bootstrap_servers, logger=None)
    await load.publish("q")
    async with load.relayed(to, {"q": topic}, on_dead=on_dead):
        await until_empty(postgres)
        refused = {f"q-{number}" for number in range(3, 40, 4)}
        dead = await load.dead()
        assert set(dead) == refused
        reason = {"aiokafka": "InvalidRecordError", "confluent": "failed to validate record"}[client]
        assert all(reason in why for why in dead.values())
    assert await load.violations("q", topic_on(server, topic), refused=refused) == []
    assert load.records.named("relay_paused") == []


@both_clients
async def test_what_waits_when_a_relay_disconnects_fails(
    own_kafka_server: Kafka, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that connects with a new password sends its rows again; they would wait for the old producer for ever."""
    monkeypatch.setattr(kafka_producer, "_STOP_SECONDS", 0.2)
    topic = f"waiting-{client}"
    await own_kafka_server.create_topic(topic, PARTITIONS)
    target = make_target(CLIENTS[client](own_kafka_server.bootstrap_servers, logger=None))
    await target.start()
    message = Outgoing(topic, b"1", {}, "k", "1", "1")
    assert await target.send_each([message]) == [None]
    own_kafka_server.pause()
    [process] = own_kafka_server.processes
    await until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    sending = asyncio.create_task(target.send_each([message]))
    await asyncio.sleep(0.2)
    await target.stop()
    [error] = await asyncio.wait_for(sending, 30)
    assert isinstance(error, OutageError)
    own_kafka_server.resume()


async def test_the_client_forgets_topics_that_are_missing(kafka_server: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may name any number of topics, and the client names those it knows in each question."""
    monkeypatch.setattr(kafka_producer, "_TOPIC_SECONDS", 0.5)
    there, missing = f"there-{uuid4().hex}", [f"missing-{uuid4().hex}" for _ in range(3)]
    await kafka_server.create_topic(there, PARTITIONS)
    target = KafkaTarget(KafkaBroker(kafka_server.bootstrap_servers, logger=None))
    await target.start()
    try:
        messages = [Outgoing(topic, b"1", {}, None, "1", "1") for topic in (*missing, there)]
        errors = await target.send_each(messages)
        assert [type(error) for error in errors] == [*[kafka_topics.MissingTopicError] * 3, type(None)]
        assert target._producer is not None
        assert target._producer.client._topics == {there}
    finally:
        await target.stop()
