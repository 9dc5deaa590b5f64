"""What handlers return, where their message is not of this broker, or is gone."""

from typing import Any

import pytest

from faststream_outbox import OutboxBroker, make_outbox_table
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.waiting import until, until_empty


async def test_a_publisher_on_a_handler_of_another_broker_commits_by_itself(postgres: PostgresBackend) -> None:
    elsewhere = make_outbox_table(postgres.metadata, "elsewhere")
    async with postgres.engine.begin() as connection:
        await connection.run_sync(elsewhere.create)
    here, there = broker_on(postgres), OutboxBroker(postgres.engine, outbox_table=elsewhere, logger=Records().logger)
    arrived = list[int]()

    @there.publisher("out")
    @here.subscriber("q")
    async def pass_on(number: int) -> int:
        return number + 1

    @there.subscriber("out")
    async def collect(number: int) -> None:
        arrived.append(number)

    async with started(there), started(here):
        await publish(here, postgres, 1)
        await until(lambda: arrived == [2])
        await until_empty(postgres)


@pytest.mark.parametrize(
    "wrong",
    [
        {"headers": {"correlation_id": "a"}, "correlation_id": "b"},
        {"headers": {"reply_to": "a"}, "reply_to": "b"},
        {"headers": {"content-type": "text/plain"}},  # the body is JSON
    ],
)
async def test_a_header_may_not_contradict_its_argument(postgres: PostgresBackend, wrong: dict[str, Any]) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        with pytest.raises(ValueError, match=r"headers\["):
            await broker.publish({"a": 1}, queue="q", session=session, **wrong)
        await broker.publish({"a": 1}, queue="q", session=session, headers={"content-type": "application/json"})
    assert len(await postgres.rows()) == 1
