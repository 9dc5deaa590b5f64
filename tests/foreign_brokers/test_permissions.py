"""An answer that NATS drops or changes is an error."""

import pytest
from faststream.nats import NatsBroker

from faststream_outbox import NoRetry
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.servers.nats import NatsWithAccount
from tests.servers.plugin import Servers
from tests.waiting import until_empty


@pytest.mark.parametrize("subject", ["forbidden.answers", 'forbidden."answers"', "forbidden.\u200b"], ids=ascii)
async def test_an_answer_to_a_forbidden_subject_is_an_error(
    postgres: PostgresBackend, servers: Servers, request: pytest.FixtureRequest, subject: str
) -> None:
    """Core NATS drops the message and answers the flush."""
    server = await servers.up(NatsWithAccount, request)
    broker, nats = broker_on(postgres), NatsBroker(server.url_of("relay"), logger=None)

    @nats.publisher(subject)
    @broker.subscriber("q", retry_strategy=NoRetry())
    async def answer(body: int) -> int:
        return body

    async with nats, started(broker):
        await nats.start()
        async with postgres.transaction() as session:
            await broker.publish(1, queue="q", session=session)
        await until_empty(postgres)
    [dead] = await postgres.dead_letters()
    assert f"NATS does not allow this user to publish to {subject!r}" in str(dead.last_exception)


async def test_an_answer_whose_key_would_arrive_as_another_one_is_an_error(
    postgres: PostgresBackend, servers: Servers, request: pytest.FixtureRequest
) -> None:
    server = await servers.up(NatsWithAccount, request)
    broker, nats = broker_on(postgres), NatsBroker(server.url_of("relay"), logger=None)

    @nats.publisher("answers")
    @broker.subscriber("q", retry_strategy=NoRetry())
    async def answer(body: int) -> int:
        return body

    async with nats, started(broker):
        await nats.start()
        async with postgres.transaction() as session:
            await broker.publish(1, queue="q", key="a", session=session)
            await broker.publish(2, queue="q", key=" a", session=session)
        await until_empty(postgres)
    [dead] = await postgres.dead_letters()
    assert dead.entity_key == " a"
    assert "would arrive changed in the header outbox_key" in str(dead.last_exception)
