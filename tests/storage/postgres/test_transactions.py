"""The promise itself: the message is there when the caller's transaction is, and only then."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from faststream_outbox.embedded import Database
from faststream_outbox.storage import ClaimCursor, NewRow, PostgresStore, make_outbox_table
from tests.backends import PostgresBackend

ROW = NewRow("q", b"x")
DOCS = Path(__file__).parents[3] / "docs"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)


async def test_nothing_is_seen_before_the_commit(postgres: PostgresBackend) -> None:
    async with postgres.sessions() as session:
        await session.begin()
        await postgres.store.insert(session, ROW)
        await postgres.store.insert_many(session, [ROW, ROW])
        assert (await postgres.claim("q")).rows == []
        await session.commit()
    assert len((await postgres.claim("q")).rows) == 3


async def test_nothing_is_left_after_a_rollback(postgres: PostgresBackend) -> None:
    async with postgres.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

    async def change_tell_and_fail() -> None:
        async with postgres.transaction() as session:
            session.add(Order(id=1))
            await postgres.store.insert(session, ROW)
            await postgres.store.insert_many(session, [ROW])
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        await change_tell_and_fail()
    assert await postgres.rows() == []
    assert await postgres.run("SELECT * FROM orders") == []


async def test_the_very_first_statement_of_a_transaction_is_inside_it(postgres: PostgresBackend) -> None:
    async with postgres.sessions() as session:
        await postgres.store.insert(session, ROW)  # begins it
        await session.rollback()
    async with postgres.engine.connect() as connection:
        await postgres.store.insert(connection, ROW)
        await connection.rollback()
    assert await postgres.rows() == []


async def test_a_savepoint_takes_its_rows_with_it(postgres: PostgresBackend) -> None:
    async with postgres.transaction() as session:
        await postgres.store.insert(session, NewRow("q", b"kept"))
        savepoint = await session.begin_nested()
        await postgres.store.insert(session, NewRow("q", b"gone"))
        await savepoint.rollback()
        await postgres.store.insert(session, NewRow("q", b"kept too"))
    assert [row.payload for row in await postgres.rows()] == [b"kept", b"kept too"]


async def test_through_a_connection(postgres: PostgresBackend) -> None:
    async with postgres.engine.begin() as connection:
        assert await postgres.store.insert(connection, ROW) is not None
        assert len(await postgres.store.insert_many(connection, [ROW, ROW])) == 2
        assert len(await postgres.store.read(connection)) == 3
    assert len(await postgres.rows()) == 3


async def test_through_an_autocommit_connection(postgres: PostgresBackend) -> None:
    async with postgres.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        assert await postgres.store.insert(connection, ROW) is not None
        assert len(await postgres.rows()) == 1


async def test_an_unkeyed_publish_does_not_flush_and_a_keyed_one_does(postgres: PostgresBackend) -> None:
    async with postgres.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with postgres.transaction() as session:
        order = Order(id=1)
        session.add(order)
        await postgres.store.insert(session, ROW)
        await postgres.store.insert_many(session, [ROW])
        assert order in session.new
        await postgres.store.insert(session, NewRow("q", b"", key="k"))
        assert order not in session.new
        another = Order(id=2)
        session.add(another)
        await postgres.store.insert_many(session, [ROW, NewRow("q", b"", key="k")])
        assert another not in session.new


async def test_a_refused_value_leaves_the_transaction_usable(postgres: PostgresBackend) -> None:
    async with postgres.transaction() as session:
        with pytest.raises(ValueError, match="NUL"):
            await postgres.store.insert(session, NewRow("q", b"", {"a": "\x00"}))
        await postgres.store.insert(session, ROW)
    assert len(await postgres.rows()) == 1


@pytest.mark.parametrize("session", [None, "session", object()])
async def test_what_is_no_session_is_refused(postgres: PostgresBackend, session: object) -> None:
    with pytest.raises(TypeError, match="AsyncSession or AsyncConnection of your open transaction"):
        await postgres.store.insert(session, ROW)  # type: ignore[arg-type]


async def test_a_session_that_is_bound_by_table(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    orders = Table("elsewhere", MetaData(), Column("id", Integer))
    other = create_async_engine(outbox_postgres.url("asyncpg"))
    binds: Any = {postgres.outbox_table: postgres.engine, orders: other}
    async with AsyncSession(binds=binds) as session, session.begin():
        assert await postgres.store.insert(session, ROW) is not None
    await other.dispose()
    assert len(await postgres.rows()) == 1


def test_through_a_synchronous_session(outbox_postgres: Database) -> None:
    engine = create_engine(outbox_postgres.url("psycopg"))
    backend = PostgresBackend(create_async_engine(outbox_postgres.url("psycopg")))
    backend.metadata.create_all(engine)
    store = PostgresStore(None, backend.outbox_table)
    with sessionmaker(engine).begin() as session:
        first = store.insert_sync(session, NewRow("q", b"1", {"a": "%(p1)s %"}, key="k"))
        assert store.insert_sync(session, NewRow("q", b"2", timer_id="t")) is not None
        assert store.insert_sync(session, NewRow("q", b"3", timer_id="t")) is None
        more = store.insert_many_sync(session, [NewRow("q", b"4"), NewRow("q", b"5")])
    with engine.begin() as connection:
        assert store.insert_sync(connection, NewRow("q", b"6")) is not None
        ids = connection.execute(select(backend.outbox_table.c.id).order_by(text("id"))).scalars().all()
    assert first == ids[0]
    assert more == list(ids[2:4])
    assert len(ids) == 5
    engine.dispose()


async def test_a_store_without_an_engine_publishes_and_says_that_it_cannot_consume(
    postgres: PostgresBackend,
) -> None:
    store = PostgresStore(None, postgres.outbox_table)
    async with async_sessionmaker(postgres.engine)() as session, session.begin():
        assert await store.insert(session, ROW) is not None
    with pytest.raises(RuntimeError, match="Without an engine"):
        async with store.connect():
            pass
    with pytest.raises(RuntimeError, match="Without an engine"):
        await store.validate_schema()


def test_another_driver_is_refused() -> None:
    engine = Mock(AsyncEngine, dialect=SimpleNamespace(name="sqlite", driver="aiosqlite"))
    with pytest.raises(TypeError, match="create_async_engine"):
        PostgresStore(create_engine("sqlite://"), make_outbox_table(MetaData()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sqlite\+aiosqlite.*postgresql\+asyncpg"):
        PostgresStore(engine, make_outbox_table(MetaData()))


async def test_through_a_scoped_session(postgres: PostgresBackend) -> None:
    scoped = async_scoped_session(postgres.sessions, scopefunc=asyncio.current_task)
    async with scoped.begin():
        assert await postgres.store.insert(scoped, ROW) is not None
    await scoped.remove()
    assert len(await postgres.rows()) == 1


async def test_a_name_that_postgres_refuses_leaves_the_transaction_usable(postgres: PostgresBackend) -> None:
    async with postgres.transaction() as session:
        with pytest.raises(ValueError, match="NUL"):
            await postgres.store.read(session, queue="a\x00b")
        assert await postgres.store.read(session) == []


async def test_the_client_on_an_autocommit_connection(postgres: PostgresBackend) -> None:
    await postgres.fill(1)
    async with postgres.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("SELECT 1"))
        [row] = (await postgres.store.borrow(connection).claim(ClaimCursor(["q"]), limit=5, lease_seconds=60)).rows
    assert (await postgres.rows())[0].acquired_token == row.acquired_token


@pytest.mark.parametrize("kind", ["plain", "keyed", "batch", "timer"])
async def test_a_producer_that_may_only_insert(postgres: PostgresBackend, kind: str) -> None:
    """The GRANTs of the documentation, as a role of their own."""
    grants = re.search(r"```sql\n(GRANT INSERT.*?)```", (DOCS / "tables.md").read_text(), re.DOTALL)
    assert grants is not None
    role = f"producer_{uuid4().hex}"
    await postgres.run(f"CREATE ROLE {role}")
    try:
        for grant in grants[1].replace("app_producer", role).strip().split(";\n"):
            await postgres.run(grant.rstrip(";"))
        async with postgres.transaction() as session:
            await session.execute(text(f"SET LOCAL ROLE {role}"))
            if kind == "batch":
                assert len(await postgres.store.insert_many(session, [ROW, NewRow("q", b"", key="k")])) == 2
            else:
                row = NewRow("q", b"", key="k" if kind == "keyed" else None, timer_id="t" if kind == "timer" else None)
                assert await postgres.store.insert(session, row) is not None
        async with postgres.transaction() as session:
            await session.execute(text(f"SET LOCAL ROLE {role}"))
            with pytest.raises(DBAPIError, match="permission denied"):
                await postgres.store.read(session)
            await session.rollback()
    finally:
        await postgres.run(f"DROP OWNED BY {role}")
        await postgres.run(f"DROP ROLE {role}")
