"""What each strategy does besides keeping the order, and how they get along."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import text

from faststream_outbox import (
    AdvisoryLocks,
    HashShards,
    HeadLease,
    OutboxBroker,
    OutboxRouter,
    TestOutboxBroker,
)
from faststream_outbox.engine.claim import shard_keeper
from faststream_outbox.storage.ordering import Ordering
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.broker.test_ordering import NAMES, STRATEGIES, publish_keyed
from tests.waiting import until, until_empty

# Long enough that a machine with other work does not let it pass.
QUICK = 2.0


@pytest.fixture
def quick_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let shards change hands in a fraction of a second."""
    monkeypatch.setattr(shard_keeper, "SHARD_LEASE_SECONDS", QUICK)


async def holders(postgres: PostgresBackend) -> Mapping[str, int]:
    """How many live shards each process holds, by its token."""
    live = "SELECT token::text FROM outbox_shards WHERE lease_expires_at > now()"
    rows = await postgres.run(f"SELECT token, count(*) FROM ({live}) AS live GROUP BY token")
    return {str(token): int(str(count)) for token, count in rows}


async def owners(postgres: PostgresBackend) -> list[object]:
    """Whose each shard is."""
    return list(await postgres.run("SELECT shard, token::text FROM outbox_shards ORDER BY shard"))


async def until_held(postgres: PostgresBackend, *counts: int) -> None:
    await until(lambda: holders(postgres), lambda found: sorted(found.values()) == sorted(counts))


async def until_known(postgres: PostgresBackend) -> None:
    """Wait until every process has renewed its leases, and so knows what is left of them."""
    now = await postgres.one("SELECT now()")
    known = (
        "SELECT min(lease_expires_at) > CAST(:now AS timestamptz) + make_interval(secs => :lease) FROM outbox_shards"
    )
    await until(lambda: postgres.one(known, now=now, lease=QUICK))


def worker(postgres: PostgresBackend, seen: list[Any], ordering: Ordering | None = None) -> OutboxBroker:
    broker = broker_on(postgres)

    @broker.subscriber("q", ordering=ordering or HashShards(), max_workers=4)
    async def handle(body: dict[str, Any]) -> None:
        seen.append((body["key"], body["number"]))

    return broker


@pytest.mark.usefixtures("quick_shards")
async def test_shards_change_hands_as_processes_come_and_go(postgres: PostgresBackend) -> None:
    first_saw, second_saw = list[Any](), list[Any]()
    first, second = worker(postgres, first_saw), worker(postgres, second_saw)
    keys = [f"k{number}" for number in range(60)]
    async with started(first):
        await until_held(postgres, 16)
        async with started(second):
            await until_held(postgres, 8, 8)
            await until_known(postgres)
            before = await owners(postgres)
            for number in range(3):
                await publish_keyed(first, postgres, *((key, number) for key in keys))
            await until_empty(postgres)
            assert await owners(postgres) == before
            assert first_saw
            assert second_saw
            # Each key was one process's own.
            assert not {key for key, _ in first_saw} & {key for key, _ in second_saw}
        await until_held(postgres, 16)
        second_saw.clear()
        await publish_keyed(first, postgres, *((key, 3) for key in keys))
        await until_empty(postgres)
    assert not second_saw
    assert await holders(postgres) == {}


@pytest.mark.usefixtures("quick_shards")
async def test_the_shards_of_a_dead_process_are_taken_over(postgres: PostgresBackend) -> None:
    await postgres.run(
        "INSERT INTO outbox_shards (queue, shard, token, holder, lease_expires_at) "
        "SELECT 'q', n, gen_random_uuid(), 'dead', now() + interval '1 second' FROM generate_series(0, 15) AS n"
    )
    seen = list[Any]()
    broker = worker(postgres, seen)
    await publish_keyed(broker, postgres, *((f"k{number}", number) for number in range(40)))
    async with started(broker):
        await until_empty(postgres)
    assert len(seen) == 40


async def test_a_key_whose_lock_somebody_holds_waits_and_no_other(postgres: PostgresBackend) -> None:
    seen = list[Any]()
    broker = worker(postgres, seen, AdvisoryLocks())
    async with postgres.engine.connect() as outsider, started(broker):
        await outsider.execute(text("SELECT pg_advisory_xact_lock(hashtext('outbox'), hashtext('q:a'))"))
        await publish_keyed(broker, postgres, ("a", 1), ("b", 1), ("a", 2), ("b", 2))
        await until(lambda: len(seen) == 2)
        assert seen == [("b", 1), ("b", 2)]
        await outsider.rollback()
        await until(lambda: len(seen) == 4)
    assert seen[2:] == [("a", 1), ("a", 2)]


async def test_strategies_share_a_queue(postgres: PostgresBackend) -> None:
    """So that a deployment may change from one to another while it runs."""
    running, seen = set[str](), defaultdict[str, list[int]](list)
    brokers = [broker_on(postgres) for _ in STRATEGIES]
    for broker, ordering in zip(brokers, STRATEGIES, strict=True):

        @broker.subscriber("q", ordering=ordering, max_workers=2, min_fetch_interval=0.05, max_fetch_interval=0.1)
        async def handle(body: dict[str, Any]) -> None:
            key = body["key"]
            assert key not in running
            running.add(key)
            await asyncio.sleep(0.001)
            running.discard(key)
            seen[key].append(body["number"])

    for broker in brokers:
        await broker.start()
    try:
        for number in range(30):
            await publish_keyed(brokers[0], postgres, *((f"k{key}", number) for key in range(10)))
        await until_empty(postgres)
    finally:
        await asyncio.gather(*(broker.stop() for broker in brokers))
    assert seen == {f"k{key}": list(range(30)) for key in range(10)}


async def test_a_missing_table_of_shards_is_told_and_holds_up_keys_only(postgres: PostgresBackend) -> None:
    await postgres.run("DROP TABLE outbox_shards")
    records, seen = Records(), list[int]()
    broker = broker_on(postgres, records)

    @broker.subscriber("q", ordering=HashShards())
    async def handle(body: dict[str, Any]) -> None:
        seen.append(body["number"])

    async with started(broker):
        [unread] = records.named("outbox_unreadable")
        assert "table of shards" in unread.getMessage()
        await publish_keyed(broker, postgres, ("a", 2))
        await publish(broker, postgres, {"number": 1})
        await until(lambda: seen == [1] and records.named("shards_failed"))
        async with postgres.engine.begin() as connection:
            await connection.run_sync(postgres.shards_table.create)
        await until(lambda: seen == [1, 2])


@pytest.mark.usefixtures("quick_shards")
async def test_without_its_shards_a_broker_is_not_well_and_still_stops_in_order(postgres: PostgresBackend) -> None:
    records, running, go_on, handled = Records(), asyncio.Event(), asyncio.Event(), list[int]()
    broker = broker_on(postgres, records)

    @broker.subscriber("q", ordering=HashShards())
    async def handle(body: dict[str, Any]) -> None:
        running.set()
        await go_on.wait()
        handled.append(body["number"])

    await publish_keyed(broker, postgres, ("a", 1))
    await broker.start()
    await running.wait()
    assert await broker.ping()
    await postgres.run("ALTER TABLE outbox_shards RENAME TO elsewhere")
    await until(broker.ping, lambda found: not found)
    stopping = asyncio.create_task(broker.stop())
    await until(lambda: records.named("release_failed"))
    assert not stopping.done()
    go_on.set()
    await stopping
    assert handled == [1]
    assert await postgres.rows() == []
    await postgres.run("ALTER TABLE elsewhere RENAME TO outbox_shards")


def test_shards_without_a_table_are_refused_where_they_are_asked_for(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres, shards_table=None)
    with pytest.raises(ValueError, match="make_shards_table"):
        broker.subscriber("q", ordering=HashShards())
    broker.subscriber("q", ordering=HashShards(shards=[0]))  # needs none


async def test_a_routers_shards_without_a_table_are_refused_at_start(postgres: PostgresBackend) -> None:
    router, broker = OutboxRouter(), broker_on(postgres, shards_table=None)

    @router.subscriber("q", ordering=HashShards())
    async def handle(body: int) -> None: ...

    broker.include_router(router)
    with pytest.raises((ValueError, RuntimeError), match="make_shards_table"):
        await broker.start()
    await broker.stop()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: HashShards(count=12), ValueError, "power of two"),
        (lambda: HashShards(count=0), ValueError, "power of two"),
        (lambda: HashShards(count=True), TypeError, "whole number"),
        (lambda: HashShards(shards=[]), ValueError, "0 to 15"),
        (lambda: HashShards(shards=[16]), ValueError, "0 to 15"),
        (lambda: HashShards(shards="01"), ValueError, "0 to 15"),  # type: ignore[arg-type]
        (lambda: HashShards(shards={1}), TypeError, "a list"),  # type: ignore[arg-type]
    ],
)
def test_shards_that_cannot_be_are_refused(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("wrong", [HeadLease, "HeadLease", None])
def test_what_is_no_strategy_is_refused(postgres: PostgresBackend, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"HeadLease\(\)"):
        broker_on(postgres).subscriber("q", ordering=wrong)


@pytest.mark.parametrize("ordering", STRATEGIES, ids=NAMES)
async def test_every_strategy_works_in_memory(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker, seen = broker_on(postgres), list[Any]()

    @broker.subscriber("q", ordering=ordering)
    async def handle(body: int) -> None:
        seen.append(body)

    async with TestOutboxBroker(broker, run_loops=True):
        await broker.publish_batch(1, 2, 3, queue="q", session=None, keys=["a", "a", "a"])
        await until(lambda: len(seen) == 3)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("ordering", STRATEGIES, ids=NAMES)
async def test_messages_are_pulled_whatever_the_strategy(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q", ordering=ordering)
    await publish_keyed(broker, postgres, ("a", 1), ("a", 2))
    async with started(broker):
        for number in (1, 2):
            message = await subscriber.get_one(timeout=60)
            assert message is not None
            assert (await message.decode())["number"] == number  # type: ignore[index]
            await message.ack()
