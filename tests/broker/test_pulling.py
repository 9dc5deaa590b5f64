"""Messages taken one by one: by `get_one`, and in a loop."""

import asyncio

import pytest
from faststream import AckPolicy

from faststream_outbox import ConstantRetry
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.waiting import until_empty


async def test_get_one(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q", lease_ttl_seconds=1.5)
    async with started(broker):
        assert await subscriber.get_one(timeout=0.05) is None
        await publish(broker, postgres, {"a": 1})
        message = await subscriber.get_one()
        assert message is not None
        assert await message.decode() == {"a": 1}
        await asyncio.sleep(2)  # longer than the lease, which is renewed
        [row] = await postgres.rows()
        assert row.deliveries_count == 1
        await message.ack()
        assert await postgres.rows() == []


async def test_get_one_waits_for_a_message(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q", min_fetch_interval=300, max_fetch_interval=300)  # nobody polls
    async with started(broker):
        waiting = asyncio.create_task(subscriber.get_one(timeout=30))
        await asyncio.sleep(0.1)
        await publish(broker, postgres, "a")
        message = await waiting
        assert message is not None
        await message.reject()
    [letter] = await postgres.dead_letters()
    assert letter.failure_reason == "rejected"


async def test_what_got_no_verdict_is_given_back(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q")
    async with started(broker):
        await publish(broker, postgres, "a")
        assert await subscriber.get_one() is not None
    [row] = await postgres.rows()
    assert (row.acquired_token, row.deliveries_count, row.attempts_count) == (None, 0, 0)


async def test_nack_follows_the_strategy(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.01, max_attempts=2))
    async with started(broker):
        await publish(broker, postgres, "a")
        for attempts in (0, 1):
            message = await subscriber.get_one(timeout=30)
            assert message is not None
            assert message.raw_message.attempts_count == attempts
            await message.nack()
    [letter] = await postgres.dead_letters()
    assert letter.failure_reason == "retry_terminal"


async def test_a_loop_acks_what_it_has_handled(postgres: PostgresBackend) -> None:
    broker, bodies = broker_on(postgres), list[str]()
    subscriber = broker.subscriber("q")
    async with started(broker):
        await publish(broker, postgres, "a", "b", "c")
        async for message in subscriber:
            bodies.append(str(await message.decode()))
            if len(bodies) == 3:
                await message.ack()
                break
        await until_empty(postgres)
    assert bodies == ["a", "b", "c"]


async def test_a_loop_that_is_left_gives_its_message_back(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q")

    async def consume() -> None:
        async for _message in subscriber:
            raise ValueError("in the body")

    async with started(broker):
        await publish(broker, postgres, "a")
        with pytest.raises(ValueError, match="in the body"):
            await consume()
    [row] = await postgres.rows()
    assert (row.acquired_token, row.attempts_count) == (None, 0)


async def test_a_loop_without_verdicts_retries_under_manual(postgres: PostgresBackend) -> None:
    broker, attempts = broker_on(postgres), list[int]()
    retry = ConstantRetry(delay_seconds=0.01)
    subscriber = broker.subscriber("q", ack_policy=AckPolicy.MANUAL, retry_strategy=retry)
    async with started(broker):
        await publish(broker, postgres, "a")
        async for message in subscriber:
            attempts.append(message.raw_message.attempts_count)
            if len(attempts) == 3:
                await message.ack()
                break
    assert attempts == [0, 1, 2]
    assert await postgres.rows() == []


async def test_a_subscriber_with_handlers_gives_nothing_away(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q")

    @subscriber
    async def handle(_body: str) -> None: ...

    with pytest.raises(AssertionError, match="has handlers"):
        await subscriber.get_one()
