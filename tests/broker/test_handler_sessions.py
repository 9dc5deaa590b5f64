"""Handlers whose writes and whose message's deletion are one transaction."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, Depends, ExceptionMiddleware
from faststream.exceptions import AckMessage, NackMessage, SetupError, StopConsume
from sqlalchemy import Connection, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from faststream_outbox import ConstantRetry, NoRetry, OutboxBroker, OutboxResponse, TestOutboxBroker
from faststream_outbox.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.waiting import until, until_empty, until_rows

AT_ONCE = ConstantRetry(delay_seconds=0.0, max_attempts=50)
LATER = ConstantRetry(delay_seconds=3600)


@pytest.fixture(autouse=True)
async def _effects(postgres: PostgresBackend) -> None:
    await postgres.run("CREATE TABLE effects (number int UNIQUE)")


async def write(session: AsyncSession, number: int) -> None:
    await session.execute(text("INSERT INTO effects VALUES (:number)"), {"number": number})


async def effects(postgres: PostgresBackend) -> list[Any]:
    return [number for (number,) in await postgres.run("SELECT number FROM effects ORDER BY number")]


async def test_effects_and_messages_change_places(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> None:
        await write(session, number)

    await publish(broker, postgres, 1, 2, 3)
    async with started(broker):
        await until_empty(postgres)
        assert await effects(postgres) == [1, 2, 3]


async def test_nothing_is_seen_of_one_without_the_other(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    wrote, go_on = asyncio.Event(), asyncio.Event()

    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> None:
        await write(session, number)
        wrote.set()
        await go_on.wait()

    await publish(broker, postgres, 1)
    async with started(broker):
        await wrote.wait()
        assert await effects(postgres) == []
        assert len(await postgres.rows()) == 1
        go_on.set()
        await until_empty(postgres)
        assert await effects(postgres) == [1]


async def test_what_a_failed_attempt_wrote_is_gone_and_the_attempt_counts(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    failed = asyncio.Event()

    @broker.subscriber("q", retry_strategy=LATER)
    async def handle(number: int, session: OutboxSession) -> None:
        await write(session, number)
        await broker.publish(number, queue="other", session=session)
        failed.set()
        raise ValueError(number)

    await publish(broker, postgres, 1)
    async with started(broker):
        await failed.wait()
    assert await effects(postgres) == []
    [row] = await postgres.rows()
    assert (row.queue, row.attempts_count) == ("q", 1)


async def test_a_retry_writes_once(postgres: PostgresBackend) -> None:
    broker, attempts = broker_on(postgres), list[int]()

    @broker.subscriber("q", retry_strategy=AT_ONCE)
    async def handle(number: int, session: OutboxSession) -> None:
        await write(session, number)
        attempts.append(number)
        if len(attempts) < 3:
            raise ValueError(number)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    assert (await effects(postgres), len(attempts)) == ([1], 3)


async def test_a_lost_lease_rolls_back(postgres: PostgresBackend) -> None:
    records = Records()
    broker = broker_on(postgres, records)

    @broker.publisher("answers")
    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> int:
        await write(session, number)
        await broker.publish(number, queue="other", session=session)
        await postgres.run("UPDATE outbox SET acquired_token = gen_random_uuid() WHERE queue = 'q'")
        return number

    await publish(broker, postgres, 1)
    async with started(broker):
        await until(lambda: records.named("lease_lost"))
    [record] = records.named("lease_lost")
    assert (record.phase, record.levelname) == ("terminal", "WARNING")
    assert await effects(postgres) == []
    assert [row.queue for row in await postgres.rows()] == ["q"]


async def test_answers_and_publications_are_part_of_it(postgres: PostgresBackend) -> None:
    broker, arrived = broker_on(postgres), set[str]()

    @broker.publisher("answers")
    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> OutboxResponse:
        await write(session, number)
        await broker.publish("published", queue="answers", session=session)
        return OutboxResponse("returned")

    @broker.subscriber("r")
    async def respond(number: int, session: OutboxSession) -> OutboxResponse:
        del number
        return OutboxResponse("responded", queue="answers", session=session)

    @broker.subscriber("answers")
    async def collect(body: str) -> None:
        arrived.add(body)

    await publish(broker, postgres, 1)
    await publish(broker, postgres, 2, queue="r")
    async with started(broker):
        await until_empty(postgres)
    assert arrived == {"published", "returned", "responded"}


async def test_batches_share_one_transaction(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.publisher("sums")
    @broker.subscriber("q", batch=True, retry_strategy=AT_ONCE)
    async def handle(numbers: list[int], session: OutboxSession) -> int:
        calls.append(numbers)
        for number in numbers:
            await write(session, number)
        if 13 in numbers:
            raise ValueError(13)
        return len(numbers)

    await publish(broker, postgres, *range(16))
    async with started(broker):
        await until(lambda: effects(postgres), lambda found: len(found) >= 15)
    assert await effects(postgres) == [number for number in range(16) if number != 13]
    assert calls[0] == list(range(16))
    assert sum(int(row.payload) for row in await postgres.rows() if row.queue == "sums") == 15


async def test_one_lost_lease_rolls_a_batch_back(postgres: PostgresBackend) -> None:
    records = Records()
    broker = broker_on(postgres, records)

    lost = asyncio.Event()

    @broker.subscriber("q", batch=True)
    async def handle(numbers: list[int], session: OutboxSession) -> None:
        for number in numbers:
            await write(session, number)
        if not lost.is_set():
            await postgres.run("UPDATE outbox SET acquired_token = gen_random_uuid() WHERE payload = '2'")
            lost.set()

    await publish(broker, postgres, 1, 2, 3)
    async with started(broker):
        await until_rows(postgres, 1)
    [row] = await postgres.rows()
    assert (row.payload, await effects(postgres)) == (b"2", [1, 3]), "the others run again, once"
    assert [record.row_id for record in records.named("lease_lost")] == [row.id]


async def test_in_a_batch_those_are_deleted_that_were_acked(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", batch=True, retry_strategy=LATER)
    async def handle(numbers: list[int], batch: OutboxBatchMessage, session: OutboxSession) -> None:
        for number, message in zip(numbers, batch.messages, strict=True):
            if number == 2:
                await message.nack()
            else:
                await write(session, number)

    await publish(broker, postgres, 1, 2, 3)
    async with started(broker):
        await until_rows(postgres, 1)
    assert await effects(postgres) == [1, 3]
    [row] = await postgres.rows()
    assert (row.payload, row.attempts_count) == (b"2", 1)


@pytest.mark.parametrize("verdict", ["nack", "reject"])
async def test_what_was_not_acked_is_rolled_back(postgres: PostgresBackend, verdict: str) -> None:
    broker = broker_on(postgres)
    called = asyncio.Event()

    @broker.subscriber("q", retry_strategy=LATER)
    async def handle(number: int, message: OutboxMessage, session: OutboxSession) -> None:
        await write(session, number)
        await getattr(message, verdict)()
        called.set()

    await publish(broker, postgres, 1)
    async with started(broker):
        await called.wait()
    assert await effects(postgres) == []
    assert len(await postgres.rows()) + len(await postgres.dead_letters()) == 1


@pytest.mark.parametrize(
    ("raised", "wrote"),
    [(AckMessage(), True), (NackMessage(), False), (StopConsume(), False), (ValueError(), False)],
)
async def test_what_a_handler_raises_decides(postgres: PostgresBackend, raised: Exception, wrote: bool) -> None:
    broker = broker_on(postgres)
    called = asyncio.Event()

    @broker.subscriber("q", retry_strategy=LATER)
    async def handle(number: int, session: OutboxSession) -> None:
        await write(session, number)
        called.set()
        raise raised

    await publish(broker, postgres, 1)
    async with started(broker):
        await called.wait()
    assert await effects(postgres) == ([1] if wrote else [])
    assert len(await postgres.rows()) == (0 if wrote else 1)


async def test_an_early_ack_does_not_outlive_an_exception(postgres: PostgresBackend) -> None:
    broker, attempts = broker_on(postgres), list[int]()

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL, retry_strategy=AT_ONCE)
    async def handle(number: int, message: OutboxMessage, session: OutboxSession) -> None:
        await message.ack()
        await write(session, number)
        attempts.append(number)
        if len(attempts) == 1:
            raise ValueError(number)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    assert (await effects(postgres), len(attempts)) == ([1], 2)


async def test_half_of_the_writes_are_not_kept_although_somebody_handles_the_exception(
    postgres: PostgresBackend,
) -> None:
    exceptions = ExceptionMiddleware()

    @exceptions.add_handler(ValueError, publish=True)
    def answer(error: ValueError) -> str:
        del error
        return "failed"

    broker, answers = broker_on(postgres, middlewares=[exceptions]), list[str]()

    @broker.publisher("answers")
    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> str:
        await write(session, number)
        raise ValueError(number)

    @broker.subscriber("answers")
    async def collect(body: str) -> None:
        answers.append(body)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    assert (await effects(postgres), answers) == ([], ["failed"])


@pytest.mark.parametrize("batch", [False, True])
async def test_writes_are_not_kept_without_the_answer_although_somebody_handles_the_exception(
    postgres: PostgresBackend, batch: bool
) -> None:
    exceptions = ExceptionMiddleware()

    @exceptions.add_handler(Exception)
    def swallow(error: Exception) -> None:
        del error

    broker = broker_on(postgres, middlewares=[exceptions])

    @broker.publisher("answers")
    @broker.subscriber("q", batch=batch)
    async def handle(body: Any, session: OutboxSession) -> object:
        del body
        await write(session, 1)
        return object()  # which cannot be encoded

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    assert await effects(postgres) == []


@pytest.mark.parametrize("way", ["commit", "begin", "rollback", "close", "swallow"])
async def test_a_handler_that_ends_the_transaction_itself_has_failed(postgres: PostgresBackend, way: str) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(number: int, session: OutboxSession) -> None:
        await write(session, number)
        match way:
            case "commit":
                await session.commit()
            case "begin":
                async with session.begin():
                    await write(session, number + 1)
            case "rollback":
                await session.rollback()
            case "close":
                async with session:
                    pass
            case "swallow":
                with pytest.raises(Exception, match="does_not_exist"):
                    await session.execute(text("SELECT * FROM does_not_exist"))

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    assert await effects(postgres) == []
    [dead] = await postgres.dead_letters()
    assert dead.last_exception is not None
    assert ("session" in dead.last_exception) or ("transaction" in dead.last_exception)


async def test_savepoints_are_the_handlers_own(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> None:
        await write(session, number)
        with pytest.raises(Exception, match="unique"):
            async with session.begin_nested():
                await write(session, number)
        async with session.begin_nested():
            await write(session, number + 1)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    assert await effects(postgres) == [1, 2]


async def test_a_dependency_may_ask_for_the_session_as_well(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    async def repository(session: OutboxSession) -> AsyncIterator[AsyncSession]:
        yield session

    @broker.subscriber("q", max_workers=3)
    async def handle(number: int, session: Annotated[AsyncSession, Depends(repository)]) -> None:
        await write(session, number)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    assert await effects(postgres) == [1]
    assert broker.subscribers[0].shares_transactions  # type: ignore[attr-defined] # ours have it


async def test_a_session_that_was_not_asked_for_is_not_given(postgres: PostgresBackend) -> None:
    """Nobody would have counted its connection, or noticed that the handler raised."""
    broker = broker_on(postgres)

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(number: int, message: OutboxMessage) -> None:
        await write(message.session, number)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    assert await effects(postgres) == []
    [dead] = await postgres.dead_letters()
    assert "session: OutboxSession" in str(dead.last_exception)


async def test_the_end_of_a_drain_rolls_back(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres, graceful_timeout=0.1)
    wrote = asyncio.Event()

    @broker.subscriber("q")
    async def handle(number: int, message: OutboxMessage, session: OutboxSession) -> None:
        await write(session, number)
        await message.ack()  # too early, and it is not held against the rest
        wrote.set()
        await asyncio.Event().wait()

    await publish(broker, postgres, 1)
    async with started(broker):
        await wrote.wait()
    assert await effects(postgres) == []
    [row] = await postgres.rows()
    assert (row.attempts_count, row.acquired_token) == (0, None)


@pytest.mark.parametrize("raises", [True, False])
async def test_what_a_handler_leaves_behind_does_not_keep_the_connection(
    postgres: PostgresBackend, raises: bool
) -> None:
    """As `asyncio.gather` does when one of its branches raises: the others go on, and use the session."""
    broker, left_behind = broker_on(postgres), list[asyncio.Task[None]]()

    async def use(session: AsyncSession) -> None:
        while True:
            await session.execute(text("SELECT pg_sleep(0.05)"))

    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.0, max_attempts=3))
    async def handle(number: int, session: OutboxSession) -> None:
        await write(session, number)
        left_behind.append(asyncio.create_task(use(session)))
        await asyncio.sleep(0.02)
        if raises:
            raise ValueError(number)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    await asyncio.gather(*left_behind, return_exceptions=True)
    assert await effects(postgres) == ([] if await postgres.dead_letters() else [1])
    assert postgres.engine.sync_engine.pool.checkedout() == 0  # type: ignore[attr-defined] # a QueuePool has it


async def end_connection(session: OutboxSession, postgres: PostgresBackend) -> None:
    pid = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
    await postgres.run(f"SELECT pg_terminate_backend({pid})")


@pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize("when", ["in the handler", "before the commit"])
async def test_a_connection_that_is_lost_is_no_failed_attempt(
    postgres: PostgresBackend, when: str, *, batch: bool
) -> None:
    broker, calls = broker_on(postgres), list[Any]()

    @broker.subscriber("q", retry_strategy=NoRetry(), batch=batch)
    async def handle(numbers: Any, session: OutboxSession) -> None:
        calls.append(numbers)
        for number in numbers if batch else [numbers]:
            await write(session, number)
        if len(calls) == 1:
            await end_connection(session, postgres)
            if when == "in the handler":
                await session.execute(text("SELECT 1"))

    await publish(broker, postgres, *([1, 2] if batch else [1]))
    async with started(broker):
        await until_empty(postgres)
    assert await postgres.dead_letters() == []
    assert (sorted(await effects(postgres)), len(calls)) == ([1, 2] if batch else [1], 2)


async def test_a_message_that_always_loses_its_connection_is_given_up(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[int]()

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(number: int, session: OutboxSession) -> None:
        calls.append(number)
        await end_connection(session, postgres)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until(postgres.dead_letters)
    [dead] = await postgres.dead_letters()
    assert (len(calls), dead.attempts_count, dead.failure_reason) == (4, 1, "retry_terminal")


async def test_another_service_that_refuses_connections_is_a_failed_attempt(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[int]()

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(number: int, session: OutboxSession) -> None:
        await write(session, number)
        calls.append(number)
        raise ConnectionRefusedError

    await publish(broker, postgres, 1)
    async with started(broker):
        await until(postgres.dead_letters)
    assert calls == [1]


async def test_renewals_do_not_disturb_it(postgres: PostgresBackend) -> None:
    broker, attempts = broker_on(postgres), list[int]()

    @broker.subscriber("q", lease_ttl_seconds=1.5)
    async def handle(number: int, session: OutboxSession) -> None:
        attempts.append(number)
        await write(session, number)
        await asyncio.sleep(2)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    assert (await effects(postgres), attempts) == ([1], [1])


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_renewals_do_not_disturb_a_strict_transaction(postgres: PostgresBackend, level: str) -> None:
    """It could not delete a row that was changed after it began, and each attempt would fail like that."""
    engine = create_async_engine(postgres.engine.url, isolation_level=level)
    broker = OutboxBroker(engine, outbox_table=postgres.outbox_table, dlq_table=postgres.dlq_table)
    attempts = list[int]()

    @broker.subscriber("q", lease_ttl_seconds=1.5, retry_strategy=NoRetry())
    async def handle(number: int, session: OutboxSession) -> None:
        attempts.append(number)
        await write(session, number)
        async with session.begin_nested():
            await asyncio.sleep(2)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    await engine.dispose()
    assert (await effects(postgres), attempts) == ([1], [1])


async def test_a_renewal_that_is_under_way_as_a_strict_transaction_begins_does_not_fail_it(
    postgres: PostgresBackend,
) -> None:
    """The transaction waits for the row with a snapshot that is older than the renewal, and begins again."""
    engine = create_async_engine(postgres.engine.url, isolation_level="REPEATABLE READ")
    event.listen(engine.sync_engine, "begin", _set_tenant)
    broker = OutboxBroker(engine, outbox_table=postgres.outbox_table, dlq_table=postgres.dlq_table)
    attempts, tenants = list[int](), list[str]()

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(number: int, session: OutboxSession) -> None:
        attempts.append(number)
        async with postgres.engine.connect() as renewal, asyncio.TaskGroup() as tasks:
            await renew(renewal, postgres)
            tasks.create_task(commit_when_waited_for(renewal))
            await write(session, number)
        tenants.append((await session.execute(text("SELECT current_setting('app.tenant')"))).scalar_one())

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    await engine.dispose()
    assert (await effects(postgres), attempts, tenants) == ([1], [1], ["ours"])


async def test_a_strict_transaction_that_cannot_begin_again_cannot_be_used(postgres: PostgresBackend) -> None:
    """Its first listener had set a tenant, which is rolled back: what a stubborn handler writes then has none."""
    engine = create_async_engine(postgres.engine.url, isolation_level="REPEATABLE READ")
    broker = OutboxBroker(engine, outbox_table=postgres.outbox_table, dlq_table=postgres.dlq_table)
    begun, refused = list[Connection](), list[BaseException]()

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(number: int, session: OutboxSession) -> None:
        event.listen(engine.sync_engine, "begin", refuse_the_second)
        async with postgres.engine.connect() as renewal, asyncio.TaskGroup() as tasks:
            await renew(renewal, postgres)
            tasks.create_task(commit_when_waited_for(renewal))
            for _ in range(2):
                try:
                    await write(session, number)
                except Exception as error:  # noqa: BLE001 - whatever it is, this handler goes on
                    refused.append(error)
        event.remove(engine.sync_engine, "begin", refuse_the_second)

    def refuse_the_second(connection: Connection) -> None:
        begun.append(connection)
        if len(begun) > 1:
            raise ConnectionRefusedError("who are you?")

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    await engine.dispose()
    assert isinstance(refused[0], ConnectionRefusedError)
    assert (len(refused), await effects(postgres), len(await postgres.dead_letters())) == (2, [], 1)


async def test_a_strict_engine_beside_ours_does_not_keep_us_from_the_message(postgres: PostgresBackend) -> None:
    """Two transactions of one session: Postgres does not know that one waits for the other."""
    broker, strict = broker_on(postgres), postgres.engine.execution_options(isolation_level="SERIALIZABLE")
    attempts = list[int]()

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(number: int, session: OutboxSession) -> None:
        attempts.append(number)
        await write(session, number)
        await session.execute(text("SELECT 1"), bind_arguments={"bind": strict.sync_engine})

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    assert (await effects(postgres), attempts) == ([1], [1])


def _set_tenant(connection: Connection) -> None:
    connection.exec_driver_sql("SET LOCAL app.tenant = 'ours'")


async def renew(connection: AsyncConnection, postgres: PostgresBackend) -> None:
    await connection.execute(text(f"UPDATE {postgres.table} SET lease_expires_at = lease_expires_at + interval '1 s'"))


async def commit_when_waited_for(connection: AsyncConnection) -> None:
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))")
    async with asyncio.timeout(30):
        while not (await connection.execute(waiting)).scalar_one():
            await connection.execute(text("SELECT pg_sleep(0.01), pg_stat_clear_snapshot()"))
    await connection.commit()


async def test_a_pool_without_a_connection_for_every_such_handler_is_refused(postgres: PostgresBackend) -> None:
    engine = create_async_engine(postgres.engine.url, pool_size=6, max_overflow=0)
    broker = OutboxBroker(engine, outbox_table=postgres.outbox_table)

    @broker.subscriber("q", max_workers=4)
    async def handle(number: int, session: OutboxSession) -> None: ...

    with pytest.raises(RuntimeError, match="pool_size=7"):
        await broker.start()
    await broker.stop()
    await engine.dispose()


async def test_an_engine_without_transactions_is_refused(postgres: PostgresBackend) -> None:
    engine = create_async_engine(postgres.engine.url, isolation_level="AUTOCOMMIT")
    broker = OutboxBroker(engine, outbox_table=postgres.outbox_table, dlq_table=postgres.dlq_table)

    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> None:
        raise AssertionError(number, session)

    with pytest.raises(RuntimeError, match="AUTOCOMMIT"):
        await broker.start()
    await broker.stop()
    await engine.dispose()


async def test_memory_refuses_what_it_cannot_promise(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> None:
        raise AssertionError(number, session)

    async with TestOutboxBroker(broker):
        with pytest.raises(NotImplementedError, match="with_real=True"):
            await broker.publish(1, queue="q", session=None)


async def test_a_plain_function_is_refused(postgres: PostgresBackend) -> None:
    """What it executes is a coroutine that nobody awaits: its writes would be lost, and its message deleted."""
    broker = broker_on(postgres)

    @broker.subscriber("q")
    def handle(number: int, session: OutboxSession) -> None:
        raise AssertionError(number, session)

    with pytest.raises(SetupError, match="async def handle"):
        await broker.start()
    await broker.stop()


async def test_a_commit_that_fails_is_told(postgres: PostgresBackend) -> None:
    """The handler has returned by then, so FastStream has logged that all is well."""
    records = Records()
    broker = broker_on(postgres, records)
    await postgres.run("CREATE TABLE late (number int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(number: int, session: OutboxSession) -> None:
        for _ in range(2):
            await session.execute(text("INSERT INTO late VALUES (:number)"), {"number": number})

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
    [record] = records.named("commit_failed")
    assert (record.levelname, record.queue) == ("ERROR", "q")
    assert "late_number_key" in record.getMessage()
    assert record.exc_info is not None
    [dead] = records.named("dead_lettered")
    assert "IntegrityError" in dead.getMessage()


async def test_the_real_test_broker_shares_transactions(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> None:
        await write(session, number)

    async with TestOutboxBroker(broker, with_real=True):
        await broker.publish(1, queue="q", session=None)
        await until_empty(postgres)
    assert await effects(postgres) == [1]


async def test_a_message_that_was_taken_has_no_session(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q")
    await publish(broker, postgres, 7)
    async with started(broker):
        message = await subscriber.get_one(timeout=60)
        assert message is not None
        with pytest.raises(RuntimeError, match="only a handler shares its transaction"):
            _ = message.session
        await message.ack()


@pytest.mark.parametrize("used", [True, False])
async def test_a_message_has_no_session_after_its_handler(postgres: PostgresBackend, used: bool) -> None:
    """It would hold a connection of the pool, and a transaction, that nobody ends."""
    broker, kept = broker_on(postgres), list[Any]()

    @broker.subscriber("q")
    async def handle(number: int, message: OutboxMessage, session: OutboxSession) -> None:
        del number
        if used:
            await session.execute(text("SELECT 1"))
        kept.append(message)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_empty(postgres)
        with pytest.raises(RuntimeError, match="has ended"):
            _ = kept[0].session
