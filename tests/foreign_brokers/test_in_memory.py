"""A user's own tests, in memory: the outbox and the other broker, each in its test broker."""

from typing import Annotated, Any

import pytest
from fastapi import FastAPI
from faststream import Context
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.confluent import TestKafkaBroker as TestConfluentBroker
from faststream.kafka import KafkaBroker, TestKafkaBroker
from faststream.nats import NatsBroker, TestNatsBroker
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from faststream.redis import RedisBroker, TestRedisBroker
from sqlalchemy import MetaData

from faststream_outbox import OutboxBroker, TestOutboxBroker, make_outbox_table
from faststream_outbox.fastapi import OutboxRouter
from tests.backends import PostgresBackend
from tests.broker.brokers import publish
from tests.foreign_brokers.endpoints import Endpoint
from tests.waiting import until, until_empty

BROKERS = {
    "kafka": (KafkaBroker, TestKafkaBroker),
    "confluent": (ConfluentBroker, TestConfluentBroker),
    "nats": (NatsBroker, TestNatsBroker),
    "rabbit": (RabbitBroker, TestRabbitBroker),
    "redis": (RedisBroker, TestRedisBroker),
}


@pytest.mark.parametrize("kind", BROKERS)
@pytest.mark.parametrize("loops", [False, True], ids=["", "loops"])
async def test_an_answer_reaches_the_other_test_broker(kind: str, *, loops: bool) -> None:
    there_type, test_type = BROKERS[kind]
    broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()))
    there: Any = there_type()
    heard: list[tuple[str, str]] = []
    answers: Any = there.publisher("answers")

    @broker.subscriber("q")
    async def handle(body: int) -> int:
        return body + 1

    async def receive(_body: int, message: Annotated[Any, Context()]) -> None:
        heard.append((message.headers["outbox_key"], message.correlation_id.partition("-")[0]))

    answers(handle)
    there.subscriber("answers")(receive)

    async with test_type(there), TestOutboxBroker(broker, run_loops=loops) as outbox:
        await outbox.publish(1, queue="q", key="k")
        await until(lambda: not outbox.fake_client.rows)
        answers.mock.assert_called_once_with(2)
    assert heard == [("k", "outbox/1")]


@pytest.mark.parametrize("endpoint", ["kafka"], indirect=True)
async def test_in_a_fastapi_application(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    router = OutboxRouter(postgres.engine, outbox_table=postgres.outbox_table)

    @endpoint.publisher(endpoint.broker())
    @router.subscriber("q")
    async def handle(body: int) -> int:
        return body + 1

    app = FastAPI()
    app.include_router(router)
    async with app.router.lifespan_context(app):
        await publish(router.broker, postgres, 1)
        await until_empty(postgres)
    [message] = await endpoint.received(1)
    assert (await message.decode(), message.headers["outbox_source"]) == (2, "outbox")
