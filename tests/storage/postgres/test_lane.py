"""The store's own connections: borrowed from the pool, given back as they were, never given back broken."""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from faststream_outbox.storage import Ack, ClaimCursor, NewRow, Retry, SettleInterruptedError, Settlement
from faststream_outbox.storage.postgres import drivers as drivers_module
from faststream_outbox.storage.postgres.drivers import LANE_SETTINGS, Records
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.backends import PostgresBackend
from tests.waiting import until

SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY (:names) ORDER BY name"


async def current_settings(backend: PostgresBackend) -> dict[Any, Any]:
    return {row[0]: row[1] for row in await backend.run(SETTINGS, names=list(LANE_SETTINGS))}


@pytest.fixture
async def one_connection(outbox_postgres: Database, driver: str) -> PostgresBackend:
    """A pool of a single connection, so that what a lane leaves behind is what the next user finds."""
    backend = PostgresBackend(create_async_engine(outbox_postgres.url(driver), pool_size=1, max_overflow=0))
    await backend.create()
    return backend


class Late:
    """Answers what was so a while ago, as a busy process hears it."""

    async def fetch(self, _statement: Statement, /, **_values: Any) -> Records:
        await asyncio.sleep(0.2)
        return [[0.1]]

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError


async def test_the_way_of_an_answer_is_not_waited_for_again(one_connection: PostgresBackend) -> None:
    due = await one_connection.store.lane(Late()).next_due(ClaimCursor(["q"]))
    assert due is not None
    assert 0 < due < 0.1, "and not 0, which would say that somebody else is just claiming it"
    await one_connection.engine.dispose()


async def test_a_lane_leaves_the_connection_as_it_was(one_connection: PostgresBackend) -> None:
    before = await current_settings(one_connection)
    pid = await one_connection.one("SELECT pg_backend_pid()")
    async with one_connection.store.connect() as lane:
        inside = await lane._executor.fetch(  # type: ignore[attr-defined]
            Statement("SELECT name, setting FROM pg_settings WHERE name = ANY (:names)"),
            names=list(LANE_SETTINGS),
        )
        assert dict(map(tuple, inside)) == LANE_SETTINGS
    assert await current_settings(one_connection) == before
    assert await one_connection.one("SELECT pg_backend_pid()") == pid, "the same connection"
    async with one_connection.engine.connect() as connection:
        await connection.execute(text("CREATE TABLE t (n int)"))
        await connection.rollback()
    assert await one_connection.one("SELECT to_regclass('t')") is None, "transactions are transactions again"
    await one_connection.engine.dispose()


async def test_the_users_own_settings_come_back(outbox_postgres: Database) -> None:
    arguments = {"server_settings": {"enable_seqscan": "off", "jit": "on"}}
    engine = create_async_engine(outbox_postgres.url("asyncpg"), pool_size=1, max_overflow=0, connect_args=arguments)
    backend = PostgresBackend(engine)
    await backend.create()
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("SET plan_cache_mode = 'force_custom_plan'"))
    before = await current_settings(backend)
    assert before["plan_cache_mode"] == "force_custom_plan"
    async with backend.store.connect() as lane:
        await lane.ping()
    assert await current_settings(backend) == before
    assert before["enable_seqscan"] == "off"
    await engine.dispose()


async def test_behind_a_pooler_no_setting_is_touched(
    one_connection: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler names itself, not the server process that the statement reaches."""
    for executor in (drivers_module.AsyncpgExecutor, drivers_module.PsycopgExecutor):
        monkeypatch.setattr(executor, "connected_to", lambda _self: -1)
    before = await current_settings(one_connection)
    await one_connection.fill(3)
    async with one_connection.store.connect() as lane:
        statement = Statement("SELECT name, setting FROM pg_settings WHERE name = ANY (:names)")
        inside = await lane._executor.fetch(statement, names=list(LANE_SETTINGS))  # type: ignore[attr-defined]
        assert dict(map(tuple, inside)) == before
        rows = (await lane.claim(ClaimCursor(["q"]), limit=10, lease_seconds=60)).rows
        assert len((await lane.settle(Settlement(row.lease, Ack()) for row in rows)).held) == 3
    await one_connection.engine.dispose()


async def test_a_lane_whose_server_process_is_gone_fails_and_the_next_works(one_connection: PostgresBackend) -> None:
    await one_connection.fill(5)
    killer = create_async_engine(one_connection.engine.url)

    async def claim_until_killed() -> None:
        async with one_connection.store.connect() as lane:
            [[pid]] = await lane._executor.fetch(Statement("SELECT pg_backend_pid()"))  # type: ignore[attr-defined]
            async with killer.connect() as connection:
                await connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            async with asyncio.timeout(30):
                while True:
                    await lane.claim(ClaimCursor(["q"]), limit=1, lease_seconds=0)

    with pytest.raises(Exception, match=r"(?i)terminat|closed|lost|reset|another operation"):
        await claim_until_killed()
    await killer.dispose()
    async with one_connection.store.connect() as lane:
        await lane.ping()
    await one_connection.engine.dispose()


async def test_a_pool_full_of_dead_connections_is_thrown_out_at_once(outbox_postgres: Database, driver: str) -> None:
    """As after a restart of the server: the first attempt may fail, the second does not."""
    backend = PostgresBackend(create_async_engine(outbox_postgres.url(driver), pool_size=5))
    await backend.create()
    async with AsyncExitStack() as stack:
        for _ in range(5):
            connection = await stack.enter_async_context(backend.engine.connect())
            await connection.execute(text("SELECT 1"))
    killer = create_async_engine(backend.engine.url)
    async with killer.connect() as connection:
        kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
        assert (await connection.execute(text(f"{kill} AND pid <> pg_backend_pid()"))).scalar_one() >= 5
    await killer.dispose()
    failures = 0
    for _ in range(2):
        try:
            async with backend.store.connect() as lane:
                await lane.ping()
        except Exception:  # noqa: BLE001 - each driver has its own word for it
            failures += 1
    assert failures <= 1
    await backend.engine.dispose()


async def test_a_cancelled_lane_is_not_given_back_in_the_middle_of_a_statement(
    one_connection: PostgresBackend,
) -> None:
    async def sleep_in_the_server() -> None:
        async with one_connection.store.connect() as lane:
            await lane._executor.fetch(Statement("SELECT pg_sleep(60)"))  # type: ignore[attr-defined]

    sleeper = asyncio.create_task(sleep_in_the_server())
    watcher = create_async_engine(one_connection.engine.url)
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'"
    async with asyncio.timeout(30), watcher.connect() as connection:
        while (await connection.execute(text(asleep))).scalar_one() != 1:
            await connection.rollback()
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    await watcher.dispose()
    async with asyncio.timeout(30), one_connection.store.connect() as lane:
        await lane.ping()
    await one_connection.engine.dispose()


async def test_a_statement_that_was_given_up_ends_in_the_server_while_it_waits_for_a_lock(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    observer = PostgresBackend(create_async_engine(outbox_postgres.url(postgres.engine.dialect.driver)))

    async def claim() -> None:
        async with postgres.store.connect() as lane:
            await lane.claim(ClaimCursor(["q"]), limit=1, lease_seconds=60)

    async with observer.engine.connect() as locked:
        await locked.execute(text(f"LOCK TABLE {postgres.table}"))
        claiming = asyncio.create_task(claim())
        await until(partial(observer.one, waiting))
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming

        async def none_waits() -> bool:
            return await observer.one(waiting) == 0

        await until(none_waits)
    await observer.engine.dispose()


async def test_an_error_in_a_statement_leaves_the_lane_usable(one_connection: PostgresBackend) -> None:
    async with one_connection.store.connect() as lane:
        with pytest.raises(Exception, match="division by zero"):
            await lane._executor.fetch(Statement("SELECT 1 / 0"))  # type: ignore[attr-defined]
        await lane.ping()
    await one_connection.engine.dispose()


async def test_a_settle_that_is_interrupted_tells_what_it_wrote(one_connection: PostgresBackend) -> None:
    """The server process dies in the middle: what was written before is not asked for again, and so not called lost."""
    await one_connection.fill(2)
    acked, retried = (await one_connection.claim("q")).rows
    await one_connection.run(
        """CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$"""
    )
    await one_connection.run("CREATE TRIGGER die BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION die()")

    async def settle() -> None:
        async with one_connection.store.connect() as lane:
            await lane.settle([Settlement(acked.lease, Ack()), Settlement(retried.lease, Retry(0, 1))])

    with pytest.raises(SettleInterruptedError) as caught:
        await settle()
    assert caught.value.settled.held == {acked.lease}
    assert caught.value.__cause__ is not None
    await one_connection.run("DROP TRIGGER die ON outbox")
    async with one_connection.store.connect() as lane:
        assert (await lane.settle([Settlement(retried.lease, Retry(0, 1))])).held == {retried.lease}
    await one_connection.engine.dispose()


async def test_a_lane_that_died_unnoticed_is_left_in_peace(one_connection: PostgresBackend) -> None:
    killer = create_async_engine(one_connection.engine.url)
    async with one_connection.store.connect() as lane, killer.connect() as connection:
        [[pid]] = await lane._executor.fetch(Statement("SELECT pg_backend_pid()"))  # type: ignore[attr-defined]
        await connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
    await killer.dispose()
    async with one_connection.store.connect() as lane:
        await lane.ping()
    await one_connection.engine.dispose()


async def test_a_database_of_stricter_isolation_does_not_make_claimers_fail(postgres: PostgresBackend) -> None:
    await postgres.run(
        """DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable',
        current_database()); END $$"""
    )
    await postgres.engine.dispose()
    assert await postgres.one("SHOW transaction_isolation") == "serializable"
    await postgres.fill(500)

    async def claim_and_settle() -> int:
        done, cursor = 0, ClaimCursor(["q"])
        async with postgres.store.connect() as lane:
            while rows := (await lane.claim(cursor, limit=20, lease_seconds=60)).rows:
                done += len((await lane.settle(Settlement(row.lease, Ack()) for row in rows)).held)
        return done

    assert sum(await asyncio.gather(*(claim_and_settle() for _ in range(4)))) == 500


async def test_a_schema_translate_map_is_refused(postgres: PostgresBackend) -> None:
    async with postgres.engine.connect() as connection:
        await connection.execution_options(schema_translate_map={None: "tenant"})
        with pytest.raises(ValueError, match="schema_translate_map"):
            await postgres.store.insert(connection, NewRow("q", b""))
