"""Without a dead-letter table a message that is given up is deleted, and the start says so."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from faststream import AckPolicy

from faststream_outbox import ConstantRetry, OutboxBroker, TestOutboxBroker
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.relay import Relay
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.relay.memory_target import Memory
from tests.waiting import until_empty


def consumer(postgres: PostgresBackend, records: Records, **options: Any) -> OutboxBroker:
    """Return a broker that gives up every message."""
    broker = broker_on(postgres, records, **options)

    @broker.subscriber("q", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(_number: int) -> None:
        raise ValueError

    return broker


async def test_it_is_said_at_the_start_and_it_is_true(postgres: PostgresBackend) -> None:
    records = Records()
    broker = consumer(postgres, records, dlq_table=None)
    async with started(broker):
        [warning] = records.named("no_dead_letters")
        assert warning.levelname == "WARNING"
        assert "is deleted" in warning.getMessage()
        assert "dlq_table=" in warning.getMessage()
        await publish(broker, postgres, 1)
        await until_empty(postgres)
    assert await postgres.dead_letters() == []


async def test_nothing_is_said_where_the_table_is_named(postgres: PostgresBackend) -> None:
    records = Records()
    broker = consumer(postgres, records)
    async with started(broker):
        await publish(broker, postgres, 1)
        await until_empty(postgres)
    assert records.named("no_dead_letters") == []
    assert len(await postgres.dead_letters()) == 1


async def test_a_broker_that_only_publishes_is_not_warned(postgres: PostgresBackend) -> None:
    records = Records()
    broker = broker_on(postgres, records, dlq_table=None)
    async with started(broker):
        await publish(broker, postgres, 1)
    assert records.named("no_dead_letters") == []


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL])
async def test_endless_retries_do_not_exclude_it_because_a_handler_may_reject(
    postgres: PostgresBackend, policy: AckPolicy
) -> None:
    records = Records()
    broker = broker_on(postgres, records, dlq_table=None)

    @broker.subscriber("q", ack_policy=policy, retry_strategy=ConstantRetry(delay_seconds=1.0, max_attempts=None))
    async def handle(_number: int, message: OutboxMessage) -> None:
        await message.reject()

    async with started(broker):
        assert len(records.named("no_dead_letters")) == 1
        await publish(broker, postgres, 1)
        await until_empty(postgres)
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("consumes", [True, False], ids=["beside subscribers", "alone"])
async def test_a_relay_says_it_too_and_a_broker_with_relays_only_once(
    postgres: PostgresBackend, *, consumes: bool
) -> None:
    records = Records()
    options = {"dlq_table": None}
    broker = consumer(postgres, records, **options) if consumes else broker_on(postgres, records, **options)
    async with AsyncExitStack() as stack:
        if consumes:
            await stack.enter_async_context(started(broker))
        for queue in ("r", "s"):
            await stack.enter_async_context(Relay(broker, to=Memory(), routes={queue: "there"}))
    async with started(broker):
        assert len(records.named("no_dead_letters")) == 1


@pytest.mark.parametrize("run_loops", [False, True])
async def test_a_test_in_memory_is_not_warned(postgres: PostgresBackend, *, run_loops: bool) -> None:
    records = Records()
    broker = consumer(postgres, records, dlq_table=None)
    async with TestOutboxBroker(broker, run_loops=run_loops):
        pass
    assert records.named("no_dead_letters") == []
