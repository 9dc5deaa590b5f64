"""A broker of two dies: topics that need both wait, others go on, and all of them come in order."""

import pytest

from faststream_outbox.relay.targets.base import Target
from tests.backends import PostgresBackend
from tests.relay.endpoints import PARTITIONS
from tests.relay.kafka.load import CLIENTS, Load, both_clients, topic_on
from tests.servers.kafka_cluster import KafkaPair
from tests.servers.plugin import Servers
from tests.waiting import until, until_empty


@pytest.fixture
async def pair(servers: Servers, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KafkaPair:
    # librdkafka does not say that replicas are missing: a topic that confirms nothing for so long has the same effect.
    monkeypatch.setattr(Target, "confirm_timeout", 2.0)
    return await servers.up(KafkaPair, request)


@both_clients
async def test_a_broker_of_two_dies(postgres: PostgresBackend, pair: KafkaPair, client: str) -> None:
    """`strict` needs both brokers, `moving` gets another leader, and `small` is on the broker that stays."""
    names = {name: f"{name}-{client}" for name in ("strict", "moving", "small")}
    await pair.create_replicated_topic(names["strict"], [1, 2, 1], min_insync_replicas="2")
    await pair.create_replicated_topic(names["moving"], [2] * PARTITIONS, min_insync_replicas="1")
    await pair.create_replicated_topic(names["small"], [1] * PARTITIONS, replicas=1, max_message_bytes="4000")
    load = Load(postgres)
    async with load.relayed(CLIENTS[client](pair.bootstrap_servers, logger=None), names) as relay:
        for queue in names:
            await load.publish(queue)
        await until_empty(postgres)
        await pair.kill()
        for queue in names:
            await load.publish(queue)
        reason = "min.insync.replicas: 1 of 2 replicas" if client == "aiokafka" else "1 of 2 replicas of partition"
        await until(lambda: reason in str(relay.paused_destinations.get(names["strict"])))
        # While its rows wait, others are sent, and one is refused in the middle of its key.
        await load.publish_one("small", "x" * 8000, "a")
        for queue in names:
            await load.publish(queue)
        await until(lambda: load.waiting("moving"), lambda left: left == 0)
        await until(lambda: load.waiting("small"), lambda left: left == 0)
        assert await load.waiting("strict") == 80
        assert set(relay.paused_destinations) == {names["strict"]}
        await pair.start()
        await until_empty(postgres)
        assert not relay.paused
    for queue, name in names.items():
        assert await load.violations(queue, topic_on(pair, name)) == []
    assert list(await load.dead()) == ["x" * 40]
    assert {record.destination for record in load.records.named("destination_resumed")} >= {names["strict"]}
    assert load.records.named("retry_scheduled") == []


@both_clients
@pytest.mark.parametrize("lack", ["no leader", "too few replicas"])
async def test_a_topic_that_takes_nothing_holds_up_no_other(
    postgres: PostgresBackend, pair: KafkaPair, client: str, lack: str
) -> None:
    """More keys wait for it than a relay sends at the same time, and those of another topic still come."""
    idle, busy = (f"{name}-{client}-{lack.replace(' ', '-')}" for name in ("idle", "busy"))
    if lack == "no leader":
        await pair.create_replicated_topic(idle, [2] * PARTITIONS, replicas=1)
    else:
        await pair.create_replicated_topic(idle, [1] * PARTITIONS, min_insync_replicas="2")
    await pair.create_replicated_topic(busy, [1] * PARTITIONS, replicas=1)
    load, routes = Load(postgres), {"idle": idle, "busy": busy}
    async with load.relayed(CLIENTS[client](pair.bootstrap_servers, logger=None), routes, max_workers=8) as relay:
        for queue in routes:
            await load.publish(queue)
        await until_empty(postgres)
        await pair.kill()
        # Nothing is known of the topic yet: all workers take its rows.
        await load.publish("idle", 80, keys=[f"key {number}" for number in range(20)])
        await until(lambda: relay.paused_destinations, lambda paused: idle in paused)
        for _ in range(2):
            for queue in routes:
                await load.publish(queue)
            await until(lambda: load.waiting("busy"), lambda left: left == 0)
        assert set(relay.paused_destinations) == {idle}
        assert lack.rsplit(maxsplit=1)[-1] in str(relay.paused_destinations[idle]).lower()
        await pair.start()
        await until_empty(postgres)
        assert not relay.paused
    for queue, name in routes.items():
        assert await load.violations(queue, topic_on(pair, name)) == []
    assert await load.dead() == {}
    assert load.records.named("retry_scheduled") == []
