"""A broker begins, ends and begins again."""

import asyncio

import pytest
from faststream import FastStream
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.faststream.environments import Inbox, PostgresWorld, World, soon


async def test_a_broker_starts_again(looping: World, inbox: Inbox) -> None:
    broker = looping.broker()

    @broker.subscriber("orders")
    async def handle(body: int) -> None:
        inbox.put(body)

    for number in range(3):
        async with looping.running(broker):
            assert broker.running
            await looping.publish(broker.publish, number, queue="orders")
            assert await inbox.next() == number
            await looping.drained()
            assert await broker.ping(5)
        assert not broker.running


def test_a_broker_is_used_in_one_event_loop_after_the_other(outbox_postgres: Database) -> None:
    # Connections belong to a loop, so that a pool would hand out those of one that is gone.
    engine = create_async_engine(outbox_postgres.url("asyncpg"), poolclass=NullPool)
    world = PostgresWorld(engine)
    broker = world.broker()
    got: list[int] = []

    @broker.subscriber("orders")
    async def handle(body: int) -> None:
        got.append(body)

    async def run(number: int) -> None:
        async with world.running(broker):
            await world.publish(broker.publish, number, queue="orders")
            await world.drained()

    asyncio.run(PostgresBackend(engine).create())
    asyncio.run(run(1))
    asyncio.run(run(2))
    assert got == [1, 2]


async def test_a_broker_that_was_not_started_only_publishes(real: PostgresWorld, inbox: Inbox) -> None:
    broker = real.broker()

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        inbox.put(body)

    async with broker:
        await real.publish(broker.publish, "a", queue="orders")
        assert not broker.running
        assert await broker.ping(5)
    assert [row.payload for row in await real.rows()] == [b"a"]
    assert inbox.empty
    await real.publish(broker.publish, "b", queue="orders")  # nor need it be connected
    assert [row.payload for row in await real.rows()] == [b"a", b"b"]


async def test_stop_before_start(looping: World) -> None:
    broker = looping.broker()
    await broker.stop()
    assert not broker.running
    async with looping.running(broker):
        pass
    await broker.stop()
    await broker.stop()


async def test_connect_and_ping(real: PostgresWorld) -> None:
    broker = real.broker()
    await broker.connect()
    assert await broker.ping(5)
    await broker.stop()


async def test_ping_tells_when_the_database_is_gone(outbox_postgres: Database) -> None:
    engine = create_async_engine(outbox_postgres.url("asyncpg").replace(outbox_postgres.name, "nowhere"))
    broker = PostgresWorld(engine).broker(logger=None)
    assert await broker.ping(5) is False
    await engine.dispose()


async def test_a_broker_without_an_engine_says_what_it_lacks(real: PostgresWorld) -> None:
    broker = type(real.broker())(outbox_table=real.backend.outbox_table)

    @broker.subscriber("orders")
    async def handle(body: str) -> None: ...

    with pytest.raises(RuntimeError, match="engine"):
        await broker.start()
    await real.publish(broker.publish, "a", queue="orders")
    assert len(await real.rows()) == 1


async def test_an_application_runs_a_broker(real: PostgresWorld, inbox: Inbox) -> None:
    broker = real.broker()
    app = FastStream(broker, logger=None)

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        inbox.put(body)
        app.exit()

    @app.after_startup
    async def publish() -> None:
        await real.publish(broker.publish, "a", queue="orders")

    await soon(app.run())
    assert await inbox.next() == "a"
    assert await real.rows() == []
    assert not broker.running


async def test_system_exit_in_a_handler_ends_the_application(real: PostgresWorld, inbox: Inbox) -> None:
    broker = real.broker()
    app = FastStream(broker, logger=None)

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        inbox.put(body)
        raise SystemExit

    @app.after_startup
    async def publish() -> None:
        await real.publish(broker.publish, "a", queue="orders")

    await soon(app.run())
    assert await inbox.next() == "a"
    # Not handled, and so not lost.
    assert [row.payload for row in await real.rows()] == [b"a"]


async def test_starting_twice_is_starting_once(looping: World, inbox: Inbox) -> None:
    broker = looping.broker()

    @broker.subscriber("orders", max_workers=1)
    async def handle(body: int) -> None:
        inbox.put(body)

    async with looping.running(broker):
        await broker.start()
        await looping.publish(broker.publish, 1, queue="orders")
        assert await inbox.next() == 1
        await looping.drained()
        await broker.stop()
        # Nobody is left who would take more.
        assert not [task for task in asyncio.all_tasks() if "faststream_outbox" in repr(task)]
