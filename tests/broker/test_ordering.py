"""Messages with a key: in their order, one at a time, and no key in the way of another."""

import asyncio
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest

from faststream_outbox import AdvisoryLocks, ConstantRetry, HashShards, HeadLease, NoRetry
from faststream_outbox.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession
from faststream_outbox.storage.ordering import Ordering
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.waiting import until, until_empty, until_rows

STRATEGIES: list[Ordering] = [HeadLease(), AdvisoryLocks(), HashShards(), HashShards(count=2, shards=[0, 1])]
NAMES = ["HeadLease", "AdvisoryLocks", "HashShards", "static"]

AT_ONCE = ConstantRetry(delay_seconds=0.0, max_attempts=50)


@pytest.fixture(params=STRATEGIES, ids=NAMES)
def ordering(request: pytest.FixtureRequest) -> Ordering:
    strategy: Ordering = request.param
    return strategy


async def publish_keyed(broker: Any, postgres: PostgresBackend, *messages: tuple[str, int], queue: str = "q") -> None:
    async with postgres.transaction() as session:
        keys, bodies = [key for key, _ in messages], [{"key": key, "number": number} for key, number in messages]
        await broker.publish_batch(*bodies, queue=queue, session=session, keys=keys)


async def test_the_messages_of_a_key_come_in_order_and_one_at_a_time(
    postgres: PostgresBackend, ordering: Ordering
) -> None:
    broker = broker_on(postgres)
    seen, running = defaultdict[str, list[int]](list), set[str]()

    @broker.subscriber("q", ordering=ordering, max_workers=8)
    async def handle(body: dict[str, Any]) -> None:
        key = body["key"]
        assert key not in running
        running.add(key)
        await asyncio.sleep(0.001)
        seen[key].append(body["number"])
        running.discard(key)

    messages = [(f"k{number % 7}", number) for number in range(200)]
    await publish_keyed(broker, postgres, *messages[:100])
    async with started(broker):
        for one in messages[100:]:
            await publish_keyed(broker, postgres, one)
        await until_empty(postgres)
    assert seen == {f"k{n}": [number for key, number in messages if key == f"k{n}"] for n in range(7)}


async def test_rows_with_and_without_a_key_share_a_queue(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker, seen = broker_on(postgres), list[Any]()

    @broker.subscriber("q", ordering=ordering)
    async def handle(body: dict[str, Any]) -> None:
        seen.append(body["number"])

    await publish(broker, postgres, {"number": 1}, {"number": 2})
    await publish_keyed(broker, postgres, ("a", 3), ("b", 4))
    async with started(broker):
        await until_empty(postgres)
    assert sorted(seen) == [1, 2, 3, 4]


async def test_as_many_keys_run_at_once_as_there_are_workers(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker, running, most, go_on = broker_on(postgres), set[str](), 0, asyncio.Event()

    @broker.subscriber("q", ordering=ordering, max_workers=4)
    async def handle(body: dict[str, Any]) -> None:
        nonlocal most
        running.add(body["key"])
        most = max(most, len(running))
        await go_on.wait()
        running.discard(body["key"])

    await publish_keyed(broker, postgres, *((f"k{number % 6}", number) for number in range(24)))
    async with started(broker):
        await until(lambda: len(running) == 4)
        go_on.set()
        await until_empty(postgres)
    assert most == 4


async def test_of_a_slow_run_what_is_done_is_soon_settled(postgres: PostgresBackend, ordering: Ordering) -> None:
    """So that a crash repeats what was handled in a tenth of a second, not in as long as a hundred messages take."""
    broker, seen, go_on = broker_on(postgres), list[int](), asyncio.Event()

    @broker.subscriber("q", ordering=ordering)
    async def handle(body: dict[str, Any]) -> None:
        if body["number"] == 5:
            await go_on.wait()
        await asyncio.sleep(0.06)
        seen.append(body["number"])

    await publish_keyed(broker, postgres, *(("a", number) for number in range(8)))
    async with started(broker):
        await until(lambda: len(seen) == 5)
        await until_rows(postgres, 4)
        go_on.set()
        await until_empty(postgres)
    assert seen == list(range(8))


async def test_a_delayed_message_holds_up_its_key_and_no_other(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker, seen = broker_on(postgres), list[tuple[str, int]]()

    @broker.subscriber("q", ordering=ordering)
    async def handle(body: dict[str, Any]) -> None:
        seen.append((body["key"], body["number"]))

    async with postgres.transaction() as session:
        delayed = {"key": "a", "number": 1}
        await broker.publish(delayed, queue="q", session=session, key="a", activate_in=timedelta(hours=1))
    await publish_keyed(broker, postgres, ("a", 2), ("b", 1), ("b", 2))
    async with started(broker):
        await until(lambda: len(seen) == 2)
        await postgres.run("UPDATE outbox SET next_attempt_at = now() WHERE entity_key = 'a'")
        await postgres.run("SELECT pg_notify('outbox_outbox', 'q')")
        await until_empty(postgres)
    assert seen == [("b", 1), ("b", 2), ("a", 1), ("a", 2)]


async def test_a_message_that_fails_blocks_its_key_and_only_its_key(
    postgres: PostgresBackend, ordering: Ordering
) -> None:
    broker, seen = broker_on(postgres), list[Any]()

    @broker.subscriber("q", ordering=ordering, retry_strategy=ConstantRetry(delay_seconds=0.3))
    async def handle(body: dict[str, Any], message: OutboxMessage) -> None:
        seen.append((body["key"], body["number"]))
        if body == {"key": "a", "number": 2} and message.raw_message.attempts_count < 2:
            raise ValueError

    await publish_keyed(broker, postgres, *((key, number) for number in range(1, 4) for key in "ab"))
    async with started(broker):
        await until_empty(postgres)
    assert [number for key, number in seen if key == "a"] == [1, 2, 2, 2, 3]
    assert [number for key, number in seen if key == "b"] == [1, 2, 3]
    assert seen.index(("b", 3)) < seen.index(("a", 3))


async def test_a_dead_message_lets_its_key_go_on(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker, seen = broker_on(postgres), list[int]()

    @broker.subscriber("q", ordering=ordering, retry_strategy=NoRetry())
    async def handle(body: dict[str, Any]) -> None:
        seen.append(body["number"])
        if body["number"] == 2:
            raise ValueError

    await publish_keyed(broker, postgres, ("a", 1), ("a", 2), ("a", 3))
    async with started(broker):
        await until_empty(postgres)
    assert seen == [1, 2, 3]
    [dead] = await postgres.dead_letters()
    assert dead.entity_key == "a"


async def test_a_batch_has_all_of_one_key(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker, calls = broker_on(postgres), list[list[tuple[str, int]]]()

    @broker.subscriber("q", ordering=ordering, batch=True, retry_strategy=AT_ONCE)
    async def handle(bodies: list[dict[str, Any]]) -> None:
        calls.append([(body["key"], body["number"]) for body in bodies])
        if len(calls) == 1:
            raise ValueError

    await publish_keyed(broker, postgres, *((key, number) for number in range(4) for key in "ab"))
    async with started(broker):
        await until_empty(postgres)
    first = calls[0][0][0]
    other = "b" if first == "a" else "a"
    assert calls[0] == [(first, number) for number in range(4)]
    assert [(other, number) for number in range(4)] in calls
    done = [one for call in calls[1:] for one in call if one[0] == first]
    assert done == [(first, number) for number in range(4)]


async def test_a_session_deletes_one_row_of_a_key_after_the_other(
    postgres: PostgresBackend, ordering: Ordering
) -> None:
    broker, seen = broker_on(postgres), list[int]()

    @broker.subscriber("q", ordering=ordering)
    async def handle(body: dict[str, Any], session: OutboxSession) -> None:
        assert session is not None
        seen.append(body["number"])

    await publish_keyed(broker, postgres, *(("a", number) for number in range(5)))
    async with started(broker):
        await until_empty(postgres)
    assert seen == list(range(5))


async def test_what_comes_while_a_key_is_busy_is_handled_when_it_is_free(
    postgres: PostgresBackend, ordering: Ordering
) -> None:
    broker, seen, go_on = broker_on(postgres), list[int](), asyncio.Event()

    @broker.subscriber("q", ordering=ordering, min_fetch_interval=60, max_fetch_interval=60)
    async def handle(body: dict[str, Any]) -> None:
        seen.append(body["number"])
        await go_on.wait()

    async with started(broker):
        await publish_keyed(broker, postgres, ("a", 1))
        await until(lambda: seen)
        await publish_keyed(broker, postgres, ("a", 2))
        await asyncio.sleep(0.3)
        assert seen == [1]
        go_on.set()
        await until_empty(postgres)
    assert seen == [1, 2]


async def test_a_key_of_a_dead_process_is_taken_over(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker, seen = broker_on(postgres), list[int]()

    @broker.subscriber("q", ordering=ordering, lease_ttl_seconds=5)
    async def handle(body: dict[str, Any]) -> None:
        seen.append(body["number"])

    await publish_keyed(broker, postgres, ("a", 1), ("a", 2))
    await postgres.run(
        "UPDATE outbox SET acquired_token = gen_random_uuid(), lease_expires_at = now() + interval '1 s', "
        "deliveries_count = 1 WHERE id = (SELECT min(id) FROM outbox)"
    )
    async with started(broker):
        await until_empty(postgres)
    assert seen == [1, 2]


async def test_whatever_a_dead_process_had_of_a_key_comes_alone(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", ordering=ordering, lease_ttl_seconds=5, batch=True, max_records=4)
    async def handle(bodies: list[dict[str, Any]]) -> None:
        calls.append([body["number"] for body in bodies])

    await publish_keyed(broker, postgres, *(("a", number) for number in range(6)))
    await postgres.run(
        "UPDATE outbox SET acquired_token = gen_random_uuid(), lease_expires_at = now() + interval '1 s', "
        "deliveries_count = 1 WHERE id = (SELECT min(id) FROM outbox)"
    )
    async with started(broker):
        await until_empty(postgres)
    assert calls == [[0], [1], [2], [3], [4, 5]]


async def test_a_batch_of_one_key_shares_a_transaction(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", ordering=ordering, batch=True, retry_strategy=AT_ONCE)
    async def handle(bodies: list[dict[str, Any]], session: OutboxSession) -> None:
        assert session is not None
        calls.append([body["number"] for body in bodies])
        if len(calls) == 1:
            raise ValueError

    await publish_keyed(broker, postgres, *(("a", number) for number in range(6)))
    async with started(broker):
        await until_empty(postgres)
    assert calls[0] == list(range(6))
    assert [number for call in calls[1:] for number in call] == list(range(6))


async def test_a_verdict_in_a_batch_that_shares_a_transaction_is_found_by_halves(
    postgres: PostgresBackend, ordering: Ordering
) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", ordering=ordering, batch=True, retry_strategy=AT_ONCE)
    async def handle(bodies: list[dict[str, Any]], batch: OutboxBatchMessage, session: OutboxSession) -> None:
        assert session is not None
        calls.append([body["number"] for body in bodies])
        if 40 in calls[-1]:
            await batch.messages[calls[-1].index(40)].reject()

    await publish_keyed(broker, postgres, *(("a", number) for number in range(64)))
    async with started(broker):
        await until_empty(postgres)
    assert [number for call in calls if len(call) == 1 or 40 not in call for number in call] == list(range(64))
    assert len(calls) < 25, "each message before it had the whole batch handled again"


async def test_in_a_batch_of_one_key_a_nack_blocks_those_behind_it(
    postgres: PostgresBackend, ordering: Ordering
) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", ordering=ordering, batch=True, retry_strategy=ConstantRetry(delay_seconds=3600))
    async def handle(bodies: list[dict[str, Any]], batch: OutboxBatchMessage) -> None:
        calls.append([body["number"] for body in bodies])
        for body, message in zip(bodies, batch.messages, strict=True):
            if body["number"] == 2:
                await message.nack()

    await publish_keyed(broker, postgres, *(("a", number) for number in range(5)))
    async with started(broker):
        await until(lambda: calls)
    assert calls == [[0, 1, 2, 3, 4]]
    rows = await postgres.rows()
    assert [(row.attempts_count, row.acquired_token) for row in rows] == [(1, None), (0, None), (0, None)]


async def test_a_lost_lease_of_the_head_fences_all_of_its_run(postgres: PostgresBackend, ordering: Ordering) -> None:
    broker = broker_on(postgres)
    running, go_on = asyncio.Event(), asyncio.Event()

    @broker.publisher("answers")
    @broker.subscriber("q", ordering=ordering)
    async def handle(body: dict[str, Any]) -> int:
        if body["number"] == 2:
            running.set()
            await go_on.wait()
        return 1

    await publish_keyed(broker, postgres, ("a", 1), ("a", 2))
    async with started(broker):
        await running.wait()
        await postgres.run("UPDATE outbox SET acquired_token = gen_random_uuid() WHERE acquired_token IS NOT NULL")
        go_on.set()
    assert [row.queue for row in await postgres.rows()] == ["q", "q"]
