"""Locked tables: who holds the lock, or is in the way of one that waits, and whose end mends it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from faststream_outbox.embedded import Database
from faststream_outbox.operations.doctor import locks
from faststream_outbox.storage import NewRow
from tests.backends import PostgresBackend
from tests.operations.doctor.visits import find, named, run, visit
from tests.roles import acting_without
from tests.waiting import until

LOCK = "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE"
AWAITED = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox'::regclass"


@asynccontextmanager
async def session(postgres: PostgresBackend, name: str) -> AsyncIterator[tuple[AsyncConnection, int]]:
    """Open a session with a name, which the test may end; yield it with its process id."""
    async with postgres.engine.connect() as connection:
        naming = text("SELECT set_config('application_name', :name, false), pg_backend_pid()")
        [(_, pid)] = await connection.execute(naming, {"name": name})
        await connection.commit()
        yield connection, pid
        await connection.invalidate()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_session_that_has_locked_a_table_is_named(postgres: PostgresBackend, driver: str) -> None:
    await postgres.insert(NewRow("q", b"1"))
    async with session(postgres, "deploy") as (forgotten, pid):
        # asyncpg sends one statement at a time.
        await forgotten.exec_driver_sql(f"{LOCK}; SELECT 'secret'" if driver == "psycopg" else LOCK)
        finding = await named(postgres, "locks")  # and no check that fails because of it
        assert finding.severity == "error"
        assert f"Session {pid} (role " in finding.what
        assert ", deploy, idle in transaction) has locked " in finding.what
        assert '"outbox" (AccessExclusiveLock)' in finding.what
        assert f"Its last statement: {LOCK}" in finding.what
        assert "secret" not in finding.what
        assert finding.since is not None
        assert finding.sql == f"SELECT pg_terminate_backend({pid});\n"
        await run(postgres.engine, finding.sql)
    assert await visit(postgres) == []


@pytest.mark.parametrize("cure", ["terminate the root", "cancel the DDL"])
async def test_a_transaction_in_the_way_of_ddl_is_named(postgres: PostgresBackend, cure: str) -> None:
    await postgres.run("CREATE INDEX extra ON outbox (created_at)")
    async with session(postgres, "nightly report") as (report, root), session(postgres, "migration") as (ddl, waiter):
        await report.exec_driver_sql("SELECT count(*) FROM outbox")
        dropping = asyncio.create_task(ddl.exec_driver_sql("DROP INDEX extra"))
        await until(lambda: postgres.one(AWAITED), lambda number: number == 1)
        finding = await named(postgres, "locks")
        assert f"Session {waiter} (role " in finding.what
        assert ", migration) waits for a lock on " in finding.what
        assert "Its statement: DROP INDEX extra." in finding.what
        assert f"Session {root} (role " in finding.what
        assert ", nightly report, idle in transaction) has it open" in finding.what
        assert "The last statement there: SELECT count(*) FROM outbox." in finding.what
        assert finding.since is not None
        assert finding.sql == f"SELECT pg_terminate_backend({root});\n"
        if cure == "terminate the root":
            await run(postgres.engine, finding.sql)
            await dropping
            await ddl.commit()
        else:
            await run(postgres.engine, finding.cure.rpartition(": ")[2] + "\n")
            with pytest.raises(DBAPIError, match="canceling statement"):
                await dropping
        assert await visit(postgres) == []


async def test_every_transaction_in_the_way_is_named(postgres: PostgresBackend) -> None:
    async with (
        session(postgres, "a") as (a, first),
        session(postgres, "b") as (b, second),
        session(postgres, "migration") as (ddl, _),
    ):
        for reader in (a, b):
            await reader.exec_driver_sql("SELECT count(*) FROM outbox")
        locking = asyncio.create_task(ddl.exec_driver_sql(LOCK))
        await until(lambda: postgres.one(AWAITED), lambda number: number == 1)
        findings = await visit(postgres)
        statements = [f"SELECT pg_terminate_backend({pid});\n" for pid in sorted((first, second))]
        assert [finding.sql for finding in findings] == statements
        for finding in findings:
            await run(postgres.engine, finding.sql)
        await locking
        await ddl.rollback()
    assert await visit(postgres) == []


async def test_a_lock_that_only_excludes_writes_is_named(postgres: PostgresBackend) -> None:
    async with session(postgres, "an index") as (connection, pid):
        await connection.exec_driver_sql("CREATE INDEX extra ON outbox (created_at)")
        [finding] = await find(postgres, "locks")
        assert "(ShareLock)" in finding.what
        assert finding.sql == f"SELECT pg_terminate_backend({pid});\n"


async def test_a_prepared_transaction_that_has_locked_a_table_is_named(own_postgres: PostgresBackend) -> None:
    await run(own_postgres.engine, f"BEGIN;\n{LOCK};\nPREPARE TRANSACTION 'it''s half done';\n")
    finding = await named(own_postgres, "locks")
    assert "The prepared transaction it's half done (role " in finding.what
    assert finding.since is not None
    assert finding.sql == "ROLLBACK PREPARED 'it''s half done';\n"
    await run(own_postgres.engine, finding.sql)
    assert await visit(own_postgres) == []


async def test_a_role_that_does_not_see_other_sessions_names_what_it_can(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    await postgres.run("CREATE INDEX extra ON outbox (created_at)")
    async with (
        acting_without(postgres, outbox_postgres, "SELECT 1") as engine,
        session(postgres, "nightly report") as (report, root),
        session(postgres, "migration") as (ddl, waiter),
    ):
        await report.exec_driver_sql("SELECT count(*) FROM outbox")
        dropping = asyncio.create_task(ddl.exec_driver_sql("DROP INDEX extra"))
        await until(lambda: postgres.one(AWAITED), lambda number: number == 1)
        [finding] = await find(postgres, "locks", engine=engine)
        assert f"Session {waiter} (role " in finding.what
        assert f"Session {root} (role " in finding.what
        assert "nightly report) has it open." in finding.what
        assert "privilege" not in finding.what
        assert finding.since is not None
        await run(postgres.engine, finding.sql)
        await dropping


async def test_a_lock_of_a_moment_is_not_named(postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    look, looks = locks._look, list[int]()
    async with postgres.engine.connect() as connection:
        await connection.exec_driver_sql(LOCK)

        async def looked(examination: Any) -> Any:
            found = await look(examination)
            looks.append(len(found))
            await connection.rollback()
            return found

        monkeypatch.setattr(locks, "_look", looked)
        assert await visit(postgres) == []
    assert looks == [1, 0]
