"""A topic that the relay may no longer write to: its rows wait until it may, and rows for other topics do not."""

from typing import Any

import pytest
from faststream.security import SASLPlaintext

from faststream_outbox.relay import by_header
from tests.backends import PostgresBackend
from tests.relay.endpoints import PARTITIONS
from tests.relay.kafka.load import CLIENTS, Load, both_clients, topic_on
from tests.servers.kafka_cluster import PASSWORD, USER, KafkaWithRights
from tests.servers.plugin import Servers
from tests.waiting import until, until_empty


@pytest.fixture
async def kafka(servers: Servers, request: pytest.FixtureRequest) -> KafkaWithRights:
    return await servers.up(KafkaWithRights, request)


def connect(kafka: KafkaWithRights, client: str) -> Any:
    """Make what a relay sends through, with the rights of the user."""
    return CLIENTS[client](f"127.0.0.1:{kafka.user_port}", logger=None, security=SASLPlaintext(USER, PASSWORD))


@both_clients
async def test_a_right_is_lost_and_comes_back(postgres: PostgresBackend, kafka: KafkaWithRights, client: str) -> None:
    fixed, other, chosen = (f"{name}-{client}" for name in ("fixed", "other", "chosen"))
    for topic in (fixed, other, chosen):
        await kafka.create_topic(topic, PARTITIONS)
        await kafka.allow(topic)
    load = Load(postgres)
    routes: dict[str, Any] = {"q": fixed, "r": other, "s": by_header("topic")}
    async with load.relayed(connect(kafka, client), routes) as relay:
        await load.publish("q")
        await load.publish("s", topic=chosen)
        await until_empty(postgres)
        for topic in (fixed, chosen):
            await kafka.forbid(topic)
        await load.publish("q")
        await load.publish("s", topic=chosen)
        await until(lambda: set(relay.paused_destinations) == {fixed, chosen})
        assert "does not allow the relay to write" in str(relay.paused_destinations[fixed])
        await load.publish("r")
        await until(lambda: load.waiting("r"), lambda left: left == 0)
        assert await load.waiting("q") == await load.waiting("s") == 40
        for topic in (fixed, chosen):
            await kafka.allow(topic)
        await until_empty(postgres)
        assert not relay.paused
    for queue, topic in (("q", fixed), ("r", other), ("s", chosen)):
        assert await load.violations(queue, topic_on(kafka, topic)) == []
    assert await load.dead() == {}
    [_, *_] = (each for each in load.records.named("destination_paused") if "to write to topic" in each.getMessage())


@both_clients
async def test_a_relay_waits_for_rights_that_it_never_had(
    postgres: PostgresBackend, kafka: KafkaWithRights, client: str
) -> None:
    """A route names the topic, so no row is at fault; rows that choose a forbidden topic are refused."""
    fixed, any_topic = f"first-{client}", f"any-{client}"
    await kafka.create_topic(fixed, PARTITIONS)
    await kafka.create_topic(any_topic, PARTITIONS)
    await kafka.allow(any_topic)  # without one right at least Kafka gives a producer no id
    load = Load(postgres)
    async with load.relayed(connect(kafka, client), {"q": fixed, "s": by_header("topic")}) as relay:
        await load.publish("q")
        for number in range(5):
            await load.publish_one("s", f"forbidden {number}", "k", topic=f"forbidden-{number}")
        await load.publish("s", topic=any_topic)
        await until(lambda: load.waiting("s"), lambda left: left == 0)
        await until(lambda: set(relay.paused_destinations) == {fixed})
        assert await load.waiting("q") == 40
        await kafka.allow(fixed)
        await until_empty(postgres)
    for queue, topic in (("q", fixed), ("s", any_topic)):
        assert await load.violations(queue, topic_on(kafka, topic)) == []
    dead = await load.dead()
    assert sorted(dead) == [f"forbidden {number}" for number in range(5)]
    assert "does not allow the relay to write to topic 'forbidden-0'" in dead["forbidden 0"]
