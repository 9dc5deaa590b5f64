"""A program as users of the original package of this name write it runs unchanged.

What the public contract of this project says otherwise is left out: `terminal_flush_batch_size` is
`terminal_batch_size`, a subscriber's `title_` and `description_` are `title` and `description`, and a message without a
correlation id is known by its row's id.
"""

import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from faststream import AckPolicy, FastStream
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from faststream_outbox import (
    ConstantRetry,
    ExponentialRetry,
    LinearRetry,
    MetricsRecorder,
    NoRetry,
    OutboxBroker,
    OutboxMessage,
    OutboxPublisher,
    OutboxResponse,
    OutboxRouter,
    TestOutboxBroker,
    TimerConflict,
    make_dlq_table,
    make_outbox_table,
    outbox_autovacuum_ddl,
)
from faststream_outbox.annotations import ContextRepo, Logger, NoCast
from faststream_outbox.annotations import OutboxBroker as BrokerOfContext
from faststream_outbox.annotations import OutboxClient as ClientOfContext
from faststream_outbox.annotations import OutboxMessage as MessageOfContext
from faststream_outbox.annotations import OutboxProducer as ProducerOfContext
from faststream_outbox.client import AbstractOutboxClient, OutboxClient
from faststream_outbox.router import OutboxRoute
from faststream_outbox.testing import fake_session
from tests.waiting import until

EVENTS: list[tuple[str, Mapping[str, Any]]] = []


def record(event: str, tags: Mapping[str, Any]) -> None:
    EVENTS.append((event, tags))


class Program:
    """One service, with a bit of everything."""

    def __init__(self, engine: AsyncEngine | None) -> None:
        self.metadata = MetaData()
        self.outbox_table = make_outbox_table(self.metadata, table_name="outbox")
        self.dlq_table = make_dlq_table(self.metadata)
        recorder: MetricsRecorder = record
        self.broker = OutboxBroker(
            engine,
            outbox_table=self.outbox_table,
            dlq_table=self.dlq_table,
            graceful_timeout=15.0,
            metrics_recorder=recorder,
            last_exception_renderer=lambda error: type(error).__name__,
            logger=None,
            log_level=logging.INFO,
            apply_types=True,
            description="a service",
            tags=(),
        )
        self.app = FastStream(self.broker)
        self.handled: list[Any] = []
        self.publisher: OutboxPublisher = self.broker.publisher("published", headers={"static": "1"}, title="Published")
        self.declare()

    def declare(self) -> None:
        broker, handled = self.broker, self.handled

        @broker.subscriber(
            ["orders", "more_orders"],
            max_workers=4,
            retry_strategy=ExponentialRetry(initial_delay_seconds=0.01, max_delay_seconds=0.1, max_attempts=3),
            fetch_batch_size=10,
            min_fetch_interval=0.1,
            max_fetch_interval=1.0,
            lease_ttl_seconds=60.0,
            max_deliveries=10,
            ack_policy=AckPolicy.NACK_ON_ERROR,
            propagate_inbound_headers=False,
            include_in_schema=True,
        )
        async def handle(  # noqa: PLR0917 - all that can be asked for
            order_id: int,
            msg: MessageOfContext,
            logger: Logger,
            context: ContextRepo,
            owner: BrokerOfContext,
            producer: ProducerOfContext,
            client: ClientOfContext,
        ) -> None:
            assert isinstance(msg, OutboxMessage)
            assert owner is broker
            assert isinstance(client, AbstractOutboxClient)
            assert producer is not None
            assert context is not None
            del logger  # None here, a mock under the test broker
            handled.append((msg.raw_message.queue, order_id))

        @broker.subscriber("dies", retry_strategy=NoRetry())
        async def dies(body: NoCast[dict[str, Any]]) -> None:
            raise ValueError(body)

        @broker.subscriber(
            "manual",
            ack_policy=AckPolicy.MANUAL,
            retry_strategy=LinearRetry(initial_delay_seconds=0.01, step_seconds=0.01, max_attempts=5),
        )
        async def manual(_body: bytes, msg: MessageOfContext) -> None:
            handled.append(("manual", msg.raw_message.attempts_count))
            if msg.raw_message.attempts_count == 0:
                await msg.nack()
            else:
                await msg.ack()

        async def routed(body: str) -> None:
            handled.append(("routed", body))

        router = OutboxRouter(handlers=[OutboxRoute(routed, "routed", max_workers=2)])

        @router.subscriber("published")
        async def published(body: str, msg: MessageOfContext) -> None:
            assert msg.headers["static"] == "1"
            handled.append(("published", body))

        broker.include_router(router)


async def publish_everything(program: Program, session: Any) -> None:
    broker = program.broker
    await broker.publish(1, queue="orders", session=session, headers={"a": "b"}, correlation_id="c")
    await broker.publish_batch(2, 3, queue="more_orders", session=session, headers={"a": "b"})
    await broker.publish({"x": 1}, queue="dies", session=session)
    await broker.publish(b"m", queue="manual", session=session)
    await broker.publish("r", queue="routed", session=session)
    await program.publisher.publish("p", session=session, headers={"own": "2"})


async def unprocessed(broker: OutboxBroker, sessions: async_sessionmaker[AsyncSession]) -> list[Any]:
    async with sessions() as session:
        return list(await broker.fetch_unprocessed(session=session, queue=None, limit=10))


EXPECTED = [
    ("manual", 0),
    ("manual", 1),
    ("more_orders", 2),
    ("more_orders", 3),
    ("orders", 1),
    ("published", "p"),
    ("routed", "r"),
]


@pytest.mark.parametrize("driver", ["asyncpg"])
async def test_on_postgres(engine: AsyncEngine) -> None:
    EVENTS.clear()
    program = Program(engine)
    async with engine.begin() as connection:
        await connection.run_sync(program.metadata.create_all)
        await connection.execute(text(outbox_autovacuum_ddl("outbox")))
    broker = program.broker
    assert isinstance(broker.client, OutboxClient)
    await broker.validate_schema(check_autovacuum=True)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    async with broker:
        await broker.start()
        async with sessions() as session, session.begin():
            await publish_everything(program, session)
        await until(lambda: unprocessed(broker, sessions), lambda rows: not rows)
        assert await broker.ping(timeout=1.0)
    assert sorted(program.handled) == EXPECTED
    async with engine.connect() as connection:
        [letter] = await connection.execute(program.dlq_table.select())
    assert (letter.failure_reason, letter.last_exception, letter.queue) == ("retry_terminal", "ValueError", "dies")
    assert {"fetched", "dispatched", "acked", "nacked_retried", "nacked_terminal", "dlq_written", "published"} <= {
        event for event, _ in EVENTS
    }
    acked = [tags for event, tags in EVENTS if event == "acked"]
    assert len(acked) == 6
    assert {"queue", "subscriber", "deliveries_count", "duration_seconds"} <= acked[0].keys()


@pytest.mark.parametrize("driver", ["asyncpg"])
async def test_timers(engine: AsyncEngine) -> None:
    program = Program(engine)
    async with engine.begin() as connection:
        await connection.run_sync(program.metadata.create_all)
    conflict: TimerConflict = "extend"
    broker, soon = program.broker, dt.timedelta(minutes=5)
    async with async_sessionmaker(engine)() as session, session.begin():
        timer: dict[str, Any] = {"queue": "orders", "session": session, "timer_id": "t"}
        first = await broker.publish(1, **timer, activate_in=soon)
        assert first is not None
        assert await broker.publish(1, **timer, activate_in=soon) is None
        await broker.publish(1, **timer, activate_in=2 * soon, timer_conflict=conflict)
        assert await broker.cancel_timer(queue="orders", timer_id="t", session=session)
        assert not await broker.cancel_timer(queue="orders", timer_id="t", session=session)
        await broker.publish(1, queue="orders", session=session, activate_at=dt.datetime.now(dt.UTC) + soon)


async def test_in_memory() -> None:
    program = Program(None)
    broker = program.broker
    async with TestOutboxBroker(broker) as test:
        assert test is broker
        await broker.publish(1, queue="orders", session=fake_session())
        with pytest.raises(ValueError, match="x"):
            await broker.publish({"x": 1}, queue="dies", session=fake_session())
    assert program.handled == [("orders", 1)]


async def test_in_memory_with_loops() -> None:
    program = Program(None)
    test_broker = TestOutboxBroker(program.broker, run_loops=True)
    async with test_broker:
        test_broker.feed("orders", b"1", headers={"content-type": "application/json"})
        await publish_everything(program, fake_session())
        await until(lambda: not test_broker.fake_client.rows)
        [letter] = test_broker.fake_client.dlq_rows
        assert (letter["failure_reason"], letter["queue"], letter["payload"]) == ("retry_terminal", "dies", b'{"x":1}')
    assert sorted(program.handled) == sorted([*EXPECTED, ("orders", 1)])


async def test_a_follow_on_row_in_a_session_of_the_handlers(engine: AsyncEngine) -> None:
    program = Program(engine)
    async with engine.begin() as connection:
        await connection.run_sync(program.metadata.create_all)
    broker, sessions = program.broker, async_sessionmaker(engine)

    @broker.subscriber("first", retry_strategy=ConstantRetry(delay_seconds=0.01))
    async def first(body: int) -> OutboxResponse:
        return OutboxResponse(body + 1, queue="orders", session=session, headers={"h": "1"})

    async with broker, sessions() as session:
        await session.begin()
        await broker.start()
        async with sessions() as publishing, publishing.begin():
            await broker.publish(1, queue="first", session=publishing)
        await until(lambda: unprocessed(broker, sessions), lambda rows: not rows)
        await session.commit()
        await until(lambda: ("orders", 2) in program.handled)


async def test_a_strategy_of_the_users_own_decides_when_and_how_often() -> None:
    asked: list[tuple[int, str]] = []

    class Mine:
        def get_next_attempt_at(
            self,
            *,
            first_attempt_at: dt.datetime,
            last_attempt_at: dt.datetime,
            attempts_count: int,
            exception: BaseException | None = None,
        ) -> dt.datetime | None:
            assert first_attempt_at <= last_attempt_at
            asked.append((attempts_count, str(exception)))
            return None if attempts_count == 3 else last_attempt_at + dt.timedelta(seconds=0.01)

    strategy = Mine()
    program = Program(None)

    @program.broker.subscriber("mine", retry_strategy=strategy)
    async def handle(body: str) -> None:
        raise ValueError(body)

    test_broker = TestOutboxBroker(program.broker, run_loops=True)
    async with test_broker:
        await program.broker.publish("no", queue="mine", session=fake_session())
        await until(lambda: not test_broker.fake_client.rows)
        [letter] = test_broker.fake_client.dlq_rows
    assert asked == [(1, "no"), (2, "no"), (3, "no")]
    assert (letter["queue"], letter["failure_reason"], letter["attempts_count"]) == ("mine", "retry_terminal", 3)
