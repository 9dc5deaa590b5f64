"""NOTIFY and LISTEN as Postgres does them: in the caller's transaction, on connections that come and go."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, QueuePool

from faststream_outbox.embedded import Database
from faststream_outbox.storage import NewRow, PostgresStore
from faststream_outbox.storage.postgres import drivers as drivers_module
from tests.backends import PostgresBackend
from tests.observers import LISTENERS, Ears
from tests.waiting import until


async def test_nobody_is_told_before_the_commit_nor_after_a_rollback(postgres: PostgresBackend) -> None:
    ears = Ears()
    async with postgres.store.listen(ears):
        async with postgres.sessions() as session:
            await postgres.store.insert(session, NewRow("rolled back", b""), notify=True)
            await postgres.store.insert_many(session, [NewRow("rolled back", b"")], notify=True)
            await session.rollback()
            await postgres.store.insert(session, NewRow("committed", b""), notify=True)
            await postgres.store.notify(["before"])
            assert await ears.until("before") == ["before"]
            await session.commit()
        assert await ears.until("committed") == ["before", "committed"]


async def test_a_savepoint_that_is_rolled_back_tells_nobody(postgres: PostgresBackend) -> None:
    ears = Ears()
    async with postgres.store.listen(ears):
        async with postgres.transaction() as session:
            savepoint = await session.begin_nested()
            await postgres.store.insert(session, NewRow("rolled back", b""), notify=True)
            await savepoint.rollback()
            await postgres.store.insert(session, NewRow("committed", b""), notify=True)
        assert await ears.until("committed") == ["committed"]


async def test_connections_of_every_kind_tell_with_their_rows(postgres: PostgresBackend) -> None:
    ears = Ears()
    async with postgres.store.listen(ears):
        async with postgres.engine.begin() as connection:
            await postgres.store.insert(connection, NewRow("connection", b""), notify=True)
        await ears.until("connection")
        async with postgres.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await postgres.store.insert(connection, NewRow("autocommit", b""), notify=True)
            await ears.until("autocommit")
        async with postgres.engine.begin() as connection:

            def publish(sync_connection: Any) -> None:
                with Session(sync_connection) as session, session.begin():
                    postgres.store.insert_sync(session, NewRow("sync", b""), notify=True)
                    postgres.store.insert_many_sync(session, [NewRow("many sync", b"")], notify=True)

            await connection.run_sync(publish)
        await ears.until("sync")
        await ears.until("many sync")


async def test_a_thousand_publishes_of_a_transaction_notify_once_per_queue(postgres: PostgresBackend) -> None:
    ears = Ears()
    async with postgres.store.listen(ears):
        async with postgres.transaction() as session:
            for n in range(1000):
                await postgres.store.insert(session, NewRow(f"q{n % 2}", b""), notify=True)
        await postgres.store.notify(["end"])
        await ears.until("end")
    assert Counter(ears.heard) == {"q0": 1, "q1": 1, "end": 1}


async def test_the_notification_is_no_statement_of_its_own(postgres: PostgresBackend) -> None:
    sent: list[str] = []

    def sending(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    async with postgres.transaction() as session:
        await session.connection()
        event.listen(postgres.engine.sync_engine, "before_cursor_execute", sending)
        await postgres.store.insert(session, NewRow("q", b""), notify=True)
        await postgres.store.insert_many(session, [NewRow("q", b"")] * 10, notify=True)
    event.remove(postgres.engine.sync_engine, "before_cursor_execute", sending)
    assert len(sent) == 2


async def test_tables_of_odd_names_have_channels_of_their_own(engine: AsyncEngine) -> None:
    one = PostgresBackend(engine, table_name='o\'ne "$1" %s \\', keep_dead=False)
    other = PostgresBackend(engine, schema="Ünï", table_name="o'ne", keep_dead=False)
    ears, other_ears = Ears(), Ears()
    await one.create()
    await other.create()
    async with one.store.listen(ears) as listening, other.store.listen(other_ears):
        await listening.test()
        async with one.transaction() as session:
            await one.store.insert(session, NewRow("row", b""), notify=True)
        async with other.transaction() as session:
            await other.store.insert(session, NewRow("other", b""), notify=True)
        await one.store.notify(["end"])
        await other.store.notify(["other end"])
        assert await ears.until("end") == ["row", "end"]
        assert await other_ears.until("other end") == ["other", "other end"]


async def test_a_tool_may_name_no_queue(postgres: PostgresBackend) -> None:
    ears = Ears()
    async with postgres.store.listen(ears):
        await postgres.run("NOTIFY outbox_outbox")
        await ears.until("")


async def test_a_killed_connection_is_known_to_be_lost(postgres: PostgresBackend) -> None:
    async with postgres.store.listen(Ears()) as listening:
        lost = asyncio.create_task(listening.wait_lost())
        await listening.test()
        assert not lost.done()
        [[pid]] = await postgres.run(LISTENERS)
        await postgres.run("SELECT pg_terminate_backend(:pid)", pid=pid)
        async with asyncio.timeout(30):
            await lost


async def test_the_server_forgets_who_has_stopped_listening(postgres: PostgresBackend) -> None:
    async with postgres.store.listen(Ears()):
        assert len(await postgres.run(LISTENERS)) == 1
    await until(lambda: postgres.run(LISTENERS), lambda found: not found)


@pytest.fixture
async def one_connection(outbox_postgres: Database, driver: str) -> AsyncIterator[PostgresBackend]:
    """A pool of a single connection."""
    engine = create_async_engine(outbox_postgres.url(driver), pool_size=1, max_overflow=0, pool_timeout=5)
    backend = PostgresBackend(engine)
    await backend.create()
    yield backend
    await engine.dispose()


async def test_listening_takes_no_place_in_the_pool(one_connection: PostgresBackend) -> None:
    ears, engine = Ears(), one_connection.engine
    assert isinstance(engine.pool, QueuePool)
    async with one_connection.store.listen(ears) as listening:
        assert engine.pool.checkedout() == 0
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
            assert listening.can_test(), "by itself"
            await listening.test()
            await listening.notify(["told"])
            await ears.until("told")
            await one_connection.store.insert(connection, NewRow("q", b""), notify=True)
            await connection.commit()
        await ears.until("q")
        assert engine.pool.checkedout() == 0


async def test_behind_a_pooler_it_is_tested_over_another_connection(
    one_connection: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler names itself, not the server process that a statement reaches."""
    for executor in (drivers_module.AsyncpgExecutor, drivers_module.PsycopgExecutor):
        monkeypatch.setattr(executor, "connected_to", lambda _self: -1)
    async with one_connection.store.listen(Ears()) as listening:
        assert listening.can_test()
        async with one_connection.engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
            assert not listening.can_test(), "the only connection is taken"
        await listening.test()


async def test_the_connection_that_listens_notifies_as_often_as_it_is_asked(postgres: PostgresBackend) -> None:
    """All at once, while others notify too: nothing is lost between two statements, nor during one."""
    ears, queues = Ears(), [f"q{n}" for n in range(20)]

    async def others() -> None:
        for n in range(20):
            await postgres.store.notify([f"other{n}"])

    async with asyncio.timeout(30), postgres.store.listen(ears) as listening:
        for _ in range(5):
            sent = (listening.notify([queue]) for queue in queues)
            await asyncio.gather(others(), *sent, *(listening.test() for _ in range(20)))
        await postgres.store.notify(["end"])
        await ears.until("end")
    assert Counter(ears.heard) == {
        **dict.fromkeys(queues, 5),
        **{f"other{n}": 5 for n in range(20)},
        "end": 1,
    }


async def test_notifying_leaves_the_connection_as_it_was(postgres: PostgresBackend) -> None:
    await postgres.store.notify(["q"])
    async with postgres.engine.connect() as connection:
        await connection.execute(text("CREATE TABLE t (n int)"))
        await connection.rollback()
    assert await postgres.one("SELECT to_regclass('t')") is None, "transactions are transactions again"


@pytest.mark.parametrize("pooled", [True, False])
async def test_it_connects_as_the_engine_does(outbox_postgres: Database, driver: str, *, pooled: bool) -> None:
    name = {"application_name": "outbox-ear"}
    arguments: dict[str, Any] = {"server_settings": name} if driver == "asyncpg" else name
    options: dict[str, Any] = {} if pooled else {"poolclass": NullPool}
    engine = create_async_engine(outbox_postgres.url(driver), connect_args=arguments, **options)
    connected: list[Any] = []
    event.listen(engine.sync_engine, "do_connect", lambda *arguments: connected.append(arguments))
    backend = PostgresBackend(engine)
    watcher = PostgresBackend(create_async_engine(outbox_postgres.url(driver)))
    ears = Ears()
    async with backend.store.listen(ears) as listening:
        await listening.test()
        query = LISTENERS + " AND application_name = 'outbox-ear'"
        assert len(await watcher.run(query)) == 1
    assert connected
    await engine.dispose()
    await watcher.engine.dispose()


async def test_without_an_engine_nothing_is_deferred_and_nobody_told(postgres: PostgresBackend) -> None:
    store = PostgresStore(None, postgres.outbox_table)
    async with postgres.sessions() as session:
        assert not store.after_commit(session, lambda: None, key="q")
    with pytest.raises(RuntimeError, match="engine"):
        await store.notify(["q"])
    with pytest.raises(RuntimeError, match="engine"):
        store.listen(Ears())
