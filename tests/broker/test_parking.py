"""`on_dead="park"`: a message that failed for good keeps its place, and its key waits for somebody to act."""

import asyncio
import math
from typing import Any

import pytest

from faststream_outbox import ConstantRetry, NoRetry, OutboxBroker, OutboxRouter, TestOutboxBroker
from faststream_outbox.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession
from faststream_outbox.fastapi import OutboxRouter as FastAPIRouter
from faststream_outbox.router import OutboxRoute
from faststream_outbox.storage import NewRow
from faststream_outbox.storage.parking import PARKED, cause_in
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.broker.test_ordering import publish_keyed
from tests.waiting import until


async def parked(postgres: PostgresBackend) -> list[tuple[str | None, str | None, int]]:
    """Tell the keys that are parked: for which reason, and after how many attempts."""
    rows = [row for row in await postgres.rows() if row.next_attempt_epoch == math.inf]
    return [(row.entity_key, cause_in(row.headers_json).reason, row.attempts_count) for row in rows]


async def until_parked(postgres: PostgresBackend, count: int = 1) -> None:
    await until(lambda: parked(postgres), lambda found: len(found) >= count)


async def test_a_parked_message_blocks_its_key_and_only_its_key(postgres: PostgresBackend) -> None:
    records, counted, seen = Records(), list[tuple[str, Any]](), list[Any]()
    broker = broker_on(postgres, records, metrics_recorder=lambda event, tags: counted.append((event, tags)))

    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.0, max_attempts=3), on_dead="park")
    async def handle(body: dict[str, Any]) -> None:
        seen.append((body["key"], body["number"]))
        if body == {"key": "a", "number": 2}:
            raise ValueError("no good")

    await publish_keyed(broker, postgres, *((key, number) for number in range(1, 4) for key in "ab"))
    async with started(broker):
        await until_parked(postgres)
        await publish_keyed(broker, postgres, ("a", 4), ("b", 4), ("c", 1))
        await until(lambda: ("c", 1) in seen and ("b", 4) in seen)
    assert [number for key, number in seen if key == "a"] == [1, 2, 2, 2]
    assert await parked(postgres) == [("a", "retry_terminal", 3)]
    head, *behind = await postgres.rows()
    assert "ValueError: no good" in (cause_in(head.headers_json).exception or "")
    assert [row.entity_key for row in behind] == ["a", "a"]
    assert await postgres.dead_letters() == []
    [record] = records.named("key_parked")
    assert (record.levelname, record.queue, record.row_id, record.key, record.reason) == (
        *("WARNING", "q", head.id, "a"),
        "retry_terminal",
    )
    assert records.named("dead_lettered") == []
    [(_, tags)] = [one for one in counted if one[0] == "nacked_terminal"]
    assert (tags["reason"], tags["exception_type"]) == ("retry_terminal", "ValueError")
    assert [event for event, _ in counted if event == "dlq_written"] == []


async def test_a_message_without_a_key_is_dead_as_ever(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", retry_strategy=NoRetry(), on_dead="park")
    async def handle(number: int) -> None:
        raise ValueError(number)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until(postgres.dead_letters)
    assert await postgres.rows() == []


async def test_a_rejected_message_is_parked(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", on_dead="park")
    async def handle(message: OutboxMessage) -> None:
        await message.reject()

    await publish_keyed(broker, postgres, ("a", 1), ("a", 2))
    async with started(broker):
        await until_parked(postgres)
    assert await parked(postgres) == [("a", "rejected", 1)]


async def test_a_message_that_was_delivered_too_often_is_parked(postgres: PostgresBackend) -> None:
    broker, seen = broker_on(postgres), list[int]()

    @broker.subscriber("q", max_deliveries=2, on_dead="park")
    async def handle(body: dict[str, Any], message: OutboxMessage) -> None:
        seen.append(body["number"])
        await message.nack(delay=0)

    await publish_keyed(broker, postgres, ("a", 1), ("a", 2))
    async with started(broker):
        await until_parked(postgres)
    assert seen == [1, 1]
    assert await parked(postgres) == [("a", "max_deliveries", 2)]


async def test_in_a_batch_what_is_before_it_is_done_and_what_is_behind_it_waits(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", batch=True, on_dead="park")
    async def handle(bodies: list[dict[str, Any]], batch: OutboxBatchMessage) -> None:
        for body, message in zip(bodies, batch.messages, strict=True):
            if body["number"] == 2:
                await message.reject()

    await publish_keyed(broker, postgres, *(("a", number) for number in range(5)))
    async with started(broker):
        await until_parked(postgres)
    head, *behind = await postgres.rows()
    assert await parked(postgres) == [("a", "rejected", 1)]
    assert [(row.attempts_count, row.acquired_token) for row in behind] == [(0, None), (0, None)]
    assert b'"number":2' in head.payload.replace(b" ", b"")


async def test_a_batch_is_halved_until_the_one_to_blame_is_parked(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", batch=True, retry_strategy=ConstantRetry(delay_seconds=0, max_attempts=2), on_dead="park")
    async def handle(bodies: list[dict[str, Any]]) -> None:
        if any(body["number"] == 5 for body in bodies):
            raise ValueError

    await publish_keyed(broker, postgres, *(("a", number) for number in range(8)))
    async with started(broker):
        await until_parked(postgres)
    assert len(await postgres.rows()) == 3
    [(key, reason, _)] = await parked(postgres)
    assert (key, reason) == ("a", "retry_terminal")


@pytest.mark.parametrize("batch", [False, True])
async def test_what_its_handler_wrote_is_rolled_back(postgres: PostgresBackend, batch: bool) -> None:
    broker = broker_on(postgres)

    async def write(session: Any, numbers: list[int]) -> None:
        for number in numbers:
            await broker.publish(number, queue="written", session=session)
        if 2 in numbers:
            raise ValueError

    if batch:

        @broker.subscriber("q", batch=True, retry_strategy=NoRetry(), on_dead="park")
        async def handle_all(bodies: list[dict[str, Any]], session: OutboxSession) -> None:
            await write(session, [body["number"] for body in bodies])

    else:

        @broker.subscriber("q", retry_strategy=NoRetry(), on_dead="park")
        async def handle(body: dict[str, Any], session: OutboxSession) -> None:
            await write(session, [body["number"]])

    await publish_keyed(broker, postgres, ("a", 1), ("a", 2), ("a", 3))
    async with started(broker):
        await until_parked(postgres)
    rows = await postgres.rows()
    assert [row.payload for row in rows if row.queue == "written"] == [b"1"]
    assert len([row for row in rows if row.queue == "q"]) == 2


@pytest.mark.parametrize("headers", ["NULL", "'null'", "'[1, 2]'", "'\"text\"'"])
async def test_headers_that_are_no_object_are_parked_too(postgres: PostgresBackend, headers: str) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", retry_strategy=NoRetry(), on_dead="park")
    async def handle(body: Any) -> None:
        raise ValueError(body)

    await postgres.run(
        f"INSERT INTO outbox (queue, entity_key, payload, headers) VALUES ('q', 'a', '1', CAST({headers} AS jsonb))"
    )
    async with started(broker):
        await until_parked(postgres)
    [[kept]] = await postgres.run(f"SELECT headers -> '{PARKED}' ->> 'reason' FROM outbox")
    assert kept == "retry_terminal"


async def test_a_message_that_is_pulled_is_parked(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q", on_dead="park", max_deliveries=1)
    await publish_keyed(broker, postgres, ("a", 1), ("b", 1))
    async with started(broker):
        message = await subscriber.get_one(timeout=10)
        assert message is not None
        await message.reject()
        other = await subscriber.get_one(timeout=10)
        assert other is not None
        await other.nack(delay=0)
        assert await subscriber.get_one(timeout=0.5) is None
    assert sorted(reason or "" for _, reason, _ in await parked(postgres)) == ["max_deliveries", "rejected"]


async def test_routers_pass_it_on(postgres: PostgresBackend) -> None:
    async def handle(body: dict[str, Any]) -> None:
        raise ValueError(body)

    router = OutboxRouter(handlers=[OutboxRoute(handle, "q", retry_strategy=NoRetry(), on_dead="park")])
    broker = broker_on(postgres)
    broker.include_router(router)
    fastapi = FastAPIRouter(postgres.engine, outbox_table=postgres.outbox_table, logger=None)
    fastapi.subscriber("f", retry_strategy=NoRetry(), on_dead="park")(handle)
    await publish_keyed(broker, postgres, ("a", 1), ("a", 2))
    await publish_keyed(broker, postgres, ("b", 1), ("b", 2), queue="f")
    async with started(broker), started(fastapi.broker):
        await until_parked(postgres, 2)
    assert len(await postgres.rows()) == 4


@pytest.mark.parametrize("run_loops", [False, True])
async def test_in_memory(postgres: PostgresBackend, run_loops: bool) -> None:
    broker, seen = broker_on(postgres), list[int]()

    @broker.subscriber("q", retry_strategy=NoRetry(), on_dead="park")
    async def handle(number: int) -> None:
        seen.append(number)
        if number == 2:
            raise ValueError

    async with TestOutboxBroker(broker, run_loops=run_loops) as test_broker:
        try:
            await test_broker.publish_batch(1, 2, 3, queue="q", keys=["a"] * 3)
        except ValueError:
            assert not run_loops
        await until(lambda: seen[-1:] == [2])
        await test_broker.publish(4, queue="q", key="a")
        await test_broker.publish(5, queue="q", key="b")
        await until(lambda: seen[-1:] == [5])
        client = broker.fake_client
        await until(lambda: len(client.rows) == 3)
        assert [row.payload for row in client.rows] == [b"2", b"3", b"4"]
        assert client.rows[0].next_attempt_epoch == math.inf
        assert client.dlq_rows == []
    assert seen == [1, 2, 5]


@pytest.mark.parametrize("value", ["stop", None, True])
def test_another_word_is_refused_where_it_is_written(postgres: PostgresBackend, value: Any) -> None:
    broker: OutboxBroker = broker_on(postgres)
    with pytest.raises(ValueError, match=r'on_dead is "skip" .* or "park"'):
        broker.subscriber("q", on_dead=value)


async def test_a_claim_does_not_grow_with_what_is_parked(postgres: PostgresBackend) -> None:
    """A subscriber comes round to a key behind a hundred thousand that are parked, and then rests."""
    broker, seen = broker_on(postgres), list[str]()

    @broker.subscriber("q")
    async def handle(body: dict[str, Any]) -> None:
        seen.append(body["key"])

    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload, next_attempt_at) "
        "SELECT 'q', 'k' || n, '1', 'infinity' FROM generate_series(1, 100000) AS n"
    )
    await postgres.run("ANALYZE outbox")
    async with started(broker):
        await publish_keyed(broker, postgres, ("zz", 1), ("kk", 1))
        await until(lambda: len(seen) == 2)
        assert await broker.ping()
    assert sorted(seen) == ["kk", "zz"]


async def test_an_unkeyed_row_that_is_never_due_does_not_disturb_the_sleep(postgres: PostgresBackend) -> None:
    broker, seen = broker_on(postgres), list[int]()

    @broker.subscriber("q", min_fetch_interval=0.05, max_fetch_interval=0.1)
    async def handle(number: int) -> None:
        seen.append(number)

    await postgres.insert(NewRow("q", b"1"), NewRow("q", b"2", key="a"))
    await postgres.run("UPDATE outbox SET next_attempt_at = 'infinity'")
    async with started(broker):
        await publish(broker, postgres, 3)
        await until(lambda: seen)
        await asyncio.sleep(0.3)
        await publish(broker, postgres, 4)
        await until(lambda: len(seen) == 2)
        assert await broker.ping()
    assert seen == [3, 4]
