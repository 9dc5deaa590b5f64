"""What handlers return, where their message is not of this broker, or is gone."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import pytest
from faststream import BaseMiddleware, Depends
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from faststream_outbox import NoRetry, OutboxBroker, OutboxResponse, make_outbox_table
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.envelope import outbox_id
from faststream_outbox.message import OutboxDelivery
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.waiting import until, until_empty


async def test_a_publisher_on_a_handler_of_another_broker_commits_by_itself(postgres: PostgresBackend) -> None:
    elsewhere = make_outbox_table(postgres.metadata, "elsewhere")
    async with postgres.engine.begin() as connection:
        await connection.run_sync(elsewhere.create)
    here, there = broker_on(postgres), OutboxBroker(postgres.engine, outbox_table=elsewhere, logger=Records().logger)
    arrived, received = list[int](), list[OutboxDelivery]()

    @there.publisher("out")
    @here.subscriber("q")
    async def pass_on(number: int, message: OutboxMessage) -> int:
        received.append(message.raw_message)
        return number + 1

    @there.subscriber("out")
    async def collect(number: int, message: OutboxMessage) -> None:
        assert message.correlation_id == outbox_id(received[0], source="outbox")
        arrived.append(number)

    async with started(there), started(here):
        await publish(here, postgres, 1)
        await until(lambda: arrived == [2])
        await until_empty(postgres)


INSERT = "INSERT INTO outbox (queue, payload, headers) VALUES ('first', '1'::bytea, {})"


@pytest.mark.parametrize(
    ("headers", "inherited"),
    [
        pytest.param('{"reply_to": "answers"}', None, id="none given"),
        pytest.param('{"reply_to": "answers", "correlation_id": "1"}', "1", id="given, like the row's id"),
        pytest.param('{"reply_to": "answers", "correlation_id": "request-7"}', "request-7", id="given"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"id_generator": lambda: "made"}], ids=["", "with an id generator"])
@pytest.mark.parametrize("batch", [False, True], ids=["", "batch"])
async def test_an_answer_has_a_correlation_id_that_no_other_outbox_has(
    postgres: PostgresBackend, headers: str, inherited: str | None, options: dict[str, Any], *, batch: bool
) -> None:
    broker, seen = broker_on(postgres, source="shop", **options), list[OutboxMessage]()

    @broker.publisher("second")
    @broker.subscriber("first", batch=batch)
    async def handle(message: OutboxMessage) -> OutboxResponse:
        seen.append(message)
        return OutboxResponse(2, queue="third")

    await postgres.run(INSERT.format(f"'{headers}'"))  # by another program
    async with started(broker):
        await until(postgres.rows, lambda rows: {"second", "third", "answers"} == {row.queue for row in rows})
    expected = inherited or outbox_id(seen[0].deliveries[0], source="shop")
    assert {(row.headers or {}).get("correlation_id") for row in await postgres.rows()} == {expected}
    assert seen[0].correlation_id == (inherited or "1")


async def test_a_publisher_that_labels_its_messages_is_believed(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.publisher("second", headers={"correlation_id": "1"})
    @broker.subscriber("first")
    async def handle(number: int) -> int:
        return number

    await postgres.run(INSERT.format("NULL"))
    async with started(broker):
        await until(postgres.rows, lambda rows: [row.queue for row in rows] == ["second"])
    [row] = await postgres.rows()
    assert (row.headers or {})["correlation_id"] == "1"


async def closed(sessions: async_sessionmaker[AsyncSession]) -> AsyncSession:
    async with sessions() as session, session.begin():
        return session


async def never_begun(sessions: async_sessionmaker[AsyncSession]) -> AsyncSession:
    return sessions()


async def rolled_back(sessions: async_sessionmaker[AsyncSession]) -> AsyncSession:
    session = sessions()
    await session.begin()
    await session.rollback()
    return session


async def closed_connection(sessions: async_sessionmaker[AsyncSession]) -> AsyncConnection:
    engine: AsyncEngine = sessions.kw["bind"]
    async with engine.begin() as connection:
        return connection


@pytest.mark.parametrize("make", [closed, never_begun, rolled_back, closed_connection], ids=lambda make: make.__name__)
@pytest.mark.parametrize("to", ["its queue", "the publisher's queue", "reply_to"])
async def test_an_answer_in_a_session_without_a_transaction_is_refused(
    postgres: PostgresBackend, make: Callable[[async_sessionmaker[AsyncSession]], Awaitable[Any]], to: str
) -> None:
    """Nobody would commit it, and the handled message would be gone."""
    records = Records()
    broker = broker_on(postgres, records)

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(_number: int) -> OutboxResponse:
        queue = "out" if to == "its queue" else ""
        return OutboxResponse("answer", queue=queue, session=await make(postgres.sessions))

    if to == "the publisher's queue":
        broker.publisher("out")(handle)
    async with started(broker):
        async with postgres.transaction() as session:
            reply_to = "out" if to == "reply_to" else ""
            await broker.publish(1, queue="q", session=session, reply_to=reply_to)
        await until(postgres.dead_letters)
    [dead] = await postgres.dead_letters()
    assert "no open transaction" in (dead.last_exception or "")
    assert "OutboxSession" in (dead.last_exception or "")


async def test_an_answer_in_a_session_of_a_dependency_is_refused_as_it_has_ended(
    postgres: PostgresBackend,
) -> None:
    broker = broker_on(postgres)

    async def transaction() -> AsyncIterator[AsyncSession]:
        async with postgres.sessions() as session, session.begin():
            yield session

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(_number: int, session: Annotated[Any, Depends(transaction)]) -> OutboxResponse:
        return OutboxResponse("answer", queue="out", session=session)

    async with started(broker):
        await publish(broker, postgres, 1)
        [dead] = await until(postgres.dead_letters)
    assert "no open transaction" in (dead.last_exception or "")


async def test_an_answer_in_a_transaction_that_a_middleware_commits_later(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    opened = list[AsyncSession]()

    class Transactional(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            session = postgres.sessions()
            await session.begin()
            opened.append(session)
            return await call_next(msg)

        async def after_processed(self, *error: Any) -> bool | None:
            await opened[0].commit()
            await opened[0].close()
            return await super().after_processed(*error)

    @broker.subscriber("q", middlewares=[Transactional])
    async def handle(_number: int) -> OutboxResponse:
        return OutboxResponse("answer", queue="out", session=opened[0])

    async with started(broker):
        await publish(broker, postgres, 1)
        await until(postgres.rows, lambda rows: [row.queue for row in rows] == ["out"])


async def test_an_answer_in_a_session_that_commits_each_statement(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    engine = postgres.engine.execution_options(isolation_level="AUTOCOMMIT")

    @broker.subscriber("q")
    async def handle(_number: int) -> OutboxResponse:
        return OutboxResponse("answer", queue="out", session=session)

    async with AsyncSession(engine) as session, started(broker):
        await publish(broker, postgres, 1)
        await until(postgres.rows, lambda rows: [row.queue for row in rows] == ["out"])


async def test_a_publish_begins_the_transaction_that_its_caller_commits(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.sessions() as session:
        assert not session.in_transaction()
        await broker.publish(1, queue="q", session=session)
        await broker.publisher("q").publish(2, session=session)
        await session.commit()
    assert len(await postgres.rows()) == 2


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
