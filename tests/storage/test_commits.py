"""After the commit, once; never before, and never without one."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import Engine, MetaData, Table, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from faststream_outbox.embedded import Database
from faststream_outbox.storage.commits import after_commit
from tests.observers import calls


@pytest.fixture
async def session(engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine) as session:
        yield session


@pytest.fixture
def sync_engine(outbox_postgres: Database) -> Iterator[Engine]:
    engine = create_engine(outbox_postgres.url("psycopg"))
    yield engine
    engine.dispose()


async def test_it_comes_after_the_commit_and_once(session: AsyncSession) -> None:
    called, callback = calls()
    assert after_commit(session, callback("a"))
    await session.execute(text("SELECT 1"))
    await session.flush()
    assert called == []
    await session.commit()
    assert called == ["a"]
    await session.execute(text("SELECT 1"))
    await session.commit()
    assert called == ["a"]


async def test_when_it_comes_others_see_the_rows(session: AsyncSession, sync_engine: Engine) -> None:
    await session.execute(text("CREATE TABLE t AS SELECT 1 AS n"))
    seen: list[object] = []

    def look() -> None:
        with sync_engine.connect() as connection:
            seen.append(connection.execute(text("SELECT n FROM t")).scalar_one())

    assert after_commit(session, look)
    await session.commit()
    assert seen == [1]


async def test_it_does_not_come_after_a_rollback(session: AsyncSession) -> None:
    called, callback = calls()
    assert after_commit(session, callback("a"))
    await session.execute(text("SELECT 1"))
    await session.rollback()
    await session.execute(text("SELECT 1"))
    await session.commit()
    assert called == []


async def test_it_does_not_come_when_the_session_is_closed_or_reset(session: AsyncSession) -> None:
    called, callback = calls()
    for end in (session.close, session.reset, session.invalidate):
        await session.execute(text("SELECT 1"))
        assert after_commit(session, callback("a"))
        await end()
        await session.execute(text("SELECT 1"))
        await session.commit()
    assert called == []


async def test_it_does_not_come_when_the_commit_fails(session: AsyncSession) -> None:
    called, callback = calls()
    await session.execute(text("CREATE TABLE t (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)"))
    await session.execute(text("INSERT INTO t VALUES (1), (1)"))
    assert after_commit(session, callback("a"))
    with pytest.raises(DBAPIError, match="duplicate key"):
        await session.commit()
    await session.rollback()
    await session.commit()
    assert called == []


async def test_a_released_savepoint_is_no_commit(session: AsyncSession) -> None:
    called, callback = calls()
    async with session.begin_nested():
        assert after_commit(session, callback("inner"), key="inner")
        async with session.begin_nested():
            assert after_commit(session, callback("innermost"), key="innermost")
            await session.execute(text("SELECT 1"))
        assert called == []
    assert called == []
    await session.commit()
    assert called == ["inner", "innermost"]


async def test_a_released_savepoint_before_a_rollback_is_nothing(session: AsyncSession) -> None:
    called, callback = calls()
    async with session.begin_nested():
        assert after_commit(session, callback("a"))
        await session.execute(text("SELECT 1"))
    await session.rollback()
    assert called == []


async def test_a_savepoint_that_is_rolled_back_leaves_the_others_alone(session: AsyncSession) -> None:
    called, callback = calls()
    await session.execute(text("SELECT 1"))
    assert after_commit(session, callback("outer"), key="outer")
    savepoint = await session.begin_nested()
    await session.execute(text("SELECT 1"))
    await savepoint.rollback()
    assert called == []
    await session.commit()
    assert called == ["outer"]


async def test_a_commit_from_within_a_savepoint_commits_all(session: AsyncSession) -> None:
    called, callback = calls()
    await session.begin_nested()
    await session.execute(text("SELECT 1"))
    assert after_commit(session, callback("a"))
    await session.commit()
    assert called == ["a"]


async def test_a_transaction_keeps_one_for_each_key(session: AsyncSession) -> None:
    called, callback = calls()
    for n in range(10_000):
        assert after_commit(session, callback(f"q{n % 3}"), key=f"q{n % 3}")
    assert len(session.info["faststream_outbox.after_commit"]) == 3
    await session.execute(text("SELECT 1"))
    await session.commit()
    assert called == ["q0", "q1", "q2"]


async def test_sessions_do_not_share(engine: AsyncEngine) -> None:
    called, callback = calls()
    async with AsyncSession(engine) as one, AsyncSession(engine) as other:
        assert after_commit(one, callback("one"), key="k")
        assert after_commit(other, callback("other"), key="k")
        for session in (one, other):
            await session.execute(text("SELECT 1"))
        await other.commit()
        assert called == ["other"]


async def test_every_kind_of_session_will_do(engine: AsyncEngine, sync_engine: Engine) -> None:
    class Special(Session):
        pass

    called, callback = calls()
    async with AsyncSession(engine, sync_session_class=Special) as session:
        assert after_commit(session, callback("special"))
        await session.execute(text("SELECT 1"))
        await session.commit()
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    assert after_commit(scoped, callback("scoped"))
    await scoped.execute(text("SELECT 1"))
    await scoped.commit()
    await scoped.remove()
    for factory in (sessionmaker(sync_engine), sessionmaker(sync_engine, class_=Special)):
        with factory() as sync_session, sync_session.begin():
            assert after_commit(sync_session, callback("sync"))
            sync_session.execute(text("SELECT 1"))
    assert called == ["special", "scoped", "sync", "sync"]


async def test_a_session_of_several_engines_is_asked_for_the_table(engine: AsyncEngine) -> None:
    table = Table("t", MetaData())
    _, callback = calls()
    async with AsyncSession(binds={table: engine}) as session:
        assert not after_commit(session, callback("nowhere"))
        assert after_commit(session, callback("t"), table=table)


async def test_where_there_is_no_such_moment(engine: AsyncEngine, sync_engine: Engine) -> None:
    called, callback = calls()
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    autocommit_from_birth = create_engine(sync_engine.url, isolation_level="AUTOCOMMIT")
    assert not after_commit(None, callback("none"))
    async with engine.connect() as connection, AsyncSession(connection) as on_connection:
        assert not after_commit(connection, callback("connection"))
        assert not after_commit(on_connection, callback("on a connection"))
        await on_connection.execute(text("SELECT 1"))
        await on_connection.commit()
    with sync_engine.connect() as sync_connection, Session(sync_connection) as sync_on_connection:
        assert not after_commit(sync_connection, callback("sync connection"))
        assert not after_commit(sync_on_connection, callback("on a sync connection"))
    async with AsyncSession(autocommit) as session:
        assert not after_commit(session, callback("autocommit"))
        await session.execute(text("SELECT 1"))
        await session.commit()
    with Session(autocommit_from_birth) as session_from_birth:
        assert not after_commit(session_from_birth, callback("autocommit from birth"))
    with Session() as unbound:
        assert not after_commit(unbound, callback("unbound"))
    autocommit_from_birth.dispose()
    assert called == []
