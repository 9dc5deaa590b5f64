"""What a handler may raise to stop more than itself, and what FastStream's verdicts are under MANUAL."""

import asyncio
from typing import Any

import pytest
from faststream import AckPolicy, FastStream
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SkipMessage, StopApplication, StopConsume

from faststream_outbox import ConstantRetry, NoRetry, OutboxBroker
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.waiting import until, until_empty


@pytest.mark.parametrize("leave", [StopApplication, SystemExit])
async def test_a_handler_stops_the_application_and_its_message_is_tried_again(
    postgres: PostgresBackend, leave: type[BaseException]
) -> None:
    broker = broker_on(postgres)
    app = FastStream(broker, logger=None)

    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=3600))
    async def handle(_body: int) -> None:
        raise leave

    await publish(broker, postgres, 1)
    await asyncio.wait_for(app.run(), 30)
    [row] = await postgres.rows()
    assert (row.attempts_count, row.acquired_token) == (1, None)


async def test_without_an_application_ping_tells_that_a_handler_exited(postgres: PostgresBackend) -> None:
    records = Records()
    broker = broker_on(postgres, records)

    @broker.subscriber("q")
    async def handle(_body: int) -> None:
        raise SystemExit

    @broker.subscriber("other")
    async def stop(_body: int) -> None:
        raise StopConsume

    async with started(broker):
        async with postgres.transaction() as session:
            await broker.publish(1, "other", session=session)
        await until(lambda: not stop_subscriber(broker).running)
        await until(broker.ping)  # a handler may stop its own subscriber; true once the other one has claimed
        await publish(broker, postgres, 1)
        await until(lambda: records.named("subscriber_exited"))
        assert not await broker.ping()


def stop_subscriber(broker: OutboxBroker) -> Any:
    return next(each for each in broker.subscribers if "other" in each.queues)  # type: ignore[attr-defined]


@pytest.mark.parametrize("raised", [AckMessage(), NackMessage(delay=0.01), RejectMessage(), SkipMessage()])
async def test_under_manual_an_exception_is_no_verdict(postgres: PostgresBackend, raised: Exception) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL, retry_strategy=NoRetry())
    async def handle(_body: int) -> None:
        raise raised

    async with started(broker):
        await publish(broker, postgres, 1)
        await until_empty(postgres)
    [dead] = await postgres.dead_letters()
    assert dead.failure_reason == "retry_terminal"
