"""The tables as they are defined: rights, row-level security, drift, storage options, schema version."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox import publish_functions_ddl
from faststream_outbox.embedded import Database
from faststream_outbox.operations import grants_sql
from faststream_outbox.storage.schema.grants import RoleKind
from tests.backends import PostgresBackend
from tests.operations.doctor.visits import complete, cured, find, named, run, visit


@asynccontextmanager
async def role_of(
    postgres: PostgresBackend, database: Database, kind: RoleKind, *, sees_sessions: bool = True
) -> AsyncIterator[tuple[str, AsyncEngine]]:
    """Connect as a role that has what its kind needs."""
    role = f"role_{uuid4().hex}"
    await run(postgres.engine, f"CREATE ROLE {role};\n")
    if sees_sessions:
        await run(postgres.engine, f"GRANT pg_read_all_stats TO {role};\n")
    tables: dict[str, Any] = {"dlq_table": postgres.dlq_table, "shards_table": postgres.shards_table}
    await run(postgres.engine, grants_sql(role, kind, outbox_table=postgres.outbox_table, **tables))
    engine = create_async_engine(database.url("asyncpg"), connect_args={"server_settings": {"role": role}})
    try:
        yield role, engine
    finally:
        await engine.dispose()
        await run(postgres.engine, f"DROP OWNED BY {role};\nDROP ROLE {role};\n")


@pytest.mark.parametrize("kind", ["producer", "consumer", "operator", "viewer"])
async def test_a_role_with_its_grants_is_not_named(
    postgres: PostgresBackend, outbox_postgres: Database, kind: RoleKind
) -> None:
    async with role_of(postgres, outbox_postgres, kind) as (_, engine):
        assert await visit(postgres, engine=engine, kind=kind) == []


@pytest.mark.parametrize(
    ("kind", "revoked"),
    [
        ("producer", "INSERT ON outbox"),
        ("producer", "SELECT (timer_id) ON outbox"),
        ("consumer", "DELETE ON outbox"),
        ("consumer", "INSERT ON outbox_dlq"),
        ("consumer", "UPDATE ON outbox_shards"),
        ("operator", "DELETE ON outbox_dlq"),
        ("viewer", "SELECT ON outbox"),
    ],
)
async def test_a_right_that_is_missing_is_named_with_its_grant(
    postgres: PostgresBackend, outbox_postgres: Database, kind: RoleKind, revoked: str
) -> None:
    async with role_of(postgres, outbox_postgres, kind) as (role, engine):
        await postgres.run(f"REVOKE {revoked} FROM {role}")
        finding = await named(postgres, "rights", engine=engine, kind=kind)
        assert finding.severity == "error"
        assert finding.sql is not None
        assert finding.sql.count(";") == 1
        await run(postgres.engine, finding.sql)
        assert await visit(postgres, engine=engine, kind=kind) == []


async def test_a_schema_that_the_role_may_not_use_is_named(engine: AsyncEngine, outbox_postgres: Database) -> None:
    postgres = PostgresBackend(engine, schema="Shop's")
    await postgres.create()
    async with role_of(postgres, outbox_postgres, "consumer") as (role, own):
        await postgres.run(f'REVOKE USAGE ON SCHEMA "Shop\'s" FROM {role}')
        finding = await named(postgres, "rights", engine=own, kind="consumer")
        assert finding.sql == f'GRANT USAGE ON SCHEMA "Shop\'s" TO "{role}";\n'
        await run(postgres.engine, finding.sql)
        assert await visit(postgres, engine=own, kind="consumer") == []


async def test_functions_that_were_revoked_are_named(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    async with role_of(postgres, outbox_postgres, "consumer") as (_, engine):
        await postgres.run("REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify FROM PUBLIC")
        [finding] = await find(postgres, "rights", engine=engine, kind="consumer")
        assert "pg_notify" in finding.what
        await run(postgres.engine, finding.sql)
        assert await visit(postgres, engine=engine, kind="consumer") == []


@pytest.mark.parametrize("kind", ["operator", "viewer"])
async def test_a_role_that_does_not_see_sessions_is_told_where_something_is_wrong(
    postgres: PostgresBackend, outbox_postgres: Database, kind: RoleKind
) -> None:
    async with role_of(postgres, outbox_postgres, kind, sees_sessions=False) as (_, engine):
        assert await visit(postgres, engine=engine, kind=kind) == []
        await postgres.run("ALTER TABLE outbox SET (fillfactor = 100)")
        storage, finding = await visit(postgres, engine=engine, kind=kind)
        assert (storage.check, finding.check, finding.severity) == ("storage", "rights", "info")
        await run(postgres.engine, finding.sql)
        await named(postgres, "storage", engine=engine, kind=kind)


async def test_a_missing_column_of_which_a_right_is_needed_is_named_once(postgres: PostgresBackend) -> None:
    await postgres.run("ALTER TABLE outbox_dlq DROP COLUMN last_exception")
    finding = await named(postgres, "drift")
    assert (finding.severity, "column last_exception is missing" in finding.what) == ("error", True)
    assert await cured(postgres, finding)
    assert await visit(postgres) == []


async def test_row_level_security_that_hides_rows_is_named(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    async with role_of(postgres, outbox_postgres, "consumer") as (_, engine):
        await postgres.run("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
        finding = await named(postgres, "row_security", engine=engine, kind="consumer")
        assert finding.severity == "error"
        await run(postgres.engine, finding.sql)
        assert await visit(postgres, engine=engine, kind="consumer") == []


@pytest.mark.parametrize(
    ("fault", "named_as"),
    [
        ("DROP INDEX outbox_ready_idx", "index (queue, next_attempt_at, id)"),
        ("DROP INDEX outbox_timer_uq", "unique index"),
        ("DROP TABLE outbox_dlq", "outbox_dlq is missing"),
        ("ALTER TABLE outbox DROP COLUMN first_attempt_at", "column first_attempt_at is missing"),
        ("ALTER TABLE outbox ALTER deliveries_count TYPE integer", "deliveries_count is integer"),
    ],
)
async def test_tables_that_differ_are_named_with_the_ddl(postgres: PostgresBackend, fault: str, named_as: str) -> None:
    await postgres.run(fault)
    finding = await named(postgres, "drift")
    assert finding.severity == "error"
    assert named_as in finding.what
    assert await cured(postgres, finding)
    assert await visit(postgres) == []


async def test_a_missing_outbox_is_the_only_thing_named(postgres: PostgresBackend) -> None:
    await postgres.run("DROP TABLE outbox")
    finding = await named(postgres, "drift")
    assert "outbox is missing" in finding.what
    assert finding.cure.startswith("Is this the right database")
    assert await cured(postgres, finding)


async def test_without_alembic_tables_are_not_compared(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faststream_outbox.storage.schema.comparison", None)
    finding = await named(postgres, "drift")
    assert finding.severity == "info"
    assert "[validate]" in finding.cure


@pytest.mark.parametrize("table", ["outbox", "outbox_dlq"])
async def test_a_missing_table_is_named_without_alembic(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setitem(sys.modules, "faststream_outbox.storage.schema.comparison", None)
    await postgres.run(f"DROP TABLE {table}")
    [missing, not_compared] = map(complete, await visit(postgres))
    assert (missing.severity, missing.what) == ("error", f"table {table} is missing.")
    assert missing.cure.startswith("Is this the right database")
    await run(postgres.engine, missing.sql)
    assert await visit(postgres) == [not_compared]


async def test_without_alembic_a_missing_column_fails_the_checks_that_read_it(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faststream_outbox.storage.schema.comparison", None)
    await postgres.run("ALTER TABLE outbox DROP COLUMN lease_expires_at CASCADE")
    failed = [finding for finding in await visit(postgres) if "lease_expires_at" in finding.what]
    assert failed
    assert {finding.severity for finding in failed} == {"warning"}


@pytest.mark.parametrize(
    "fault", ["RESET (fillfactor)", "SET (autovacuum_enabled = false)", "RESET (autovacuum_vacuum_threshold)"]
)
async def test_storage_options_that_differ_are_named(postgres: PostgresBackend, fault: str) -> None:
    await postgres.run(f"ALTER TABLE outbox {fault}")
    finding = await named(postgres, "storage")
    assert finding.severity == "warning"
    assert await cured(postgres, finding)


async def test_an_older_schema_is_named(postgres: PostgresBackend) -> None:
    await postgres.run("COMMENT ON TABLE outbox IS 'faststream-outbox schema 0'")
    finding = await named(postgres, "schema_version")
    assert finding.severity == "warning"
    assert await cured(postgres, finding)


async def test_a_newer_schema_is_worth_knowing(postgres: PostgresBackend) -> None:
    await postgres.run("COMMENT ON TABLE outbox IS 'faststream-outbox schema 999'")
    finding = await named(postgres, "schema_version")
    assert (finding.severity, finding.cure) == ("info", "Upgrade this package soon.")


async def test_ddl_of_an_older_package_comes_with_a_caution(postgres: PostgresBackend) -> None:
    await postgres.run("COMMENT ON TABLE outbox IS 'faststream-outbox schema 999'")
    await postgres.run("DROP INDEX outbox_ready_idx")
    [finding] = await find(postgres, "drift")
    assert "Only if no newer process runs" in finding.cure


async def test_a_missing_dead_letter_table_is_named(postgres: PostgresBackend) -> None:
    finding = await named(postgres, "dead_letter_table", dlq_table=None)
    assert (finding.severity, "make_dlq_table" in finding.cure) == ("warning", True)


async def create_functions(postgres: PostgresBackend) -> None:
    async with postgres.engine.begin() as connection:
        for statement in publish_functions_ddl(postgres.outbox_table):
            await connection.exec_driver_sql(statement)


async def test_functions_of_an_older_version_are_named(postgres: PostgresBackend) -> None:
    await create_functions(postgres)
    assert await visit(postgres) == []
    arguments = "text, jsonb, jsonb, text, timestamp with time zone, text"
    await run(postgres.engine, f"COMMENT ON FUNCTION outbox_publish({arguments}) IS 'faststream-outbox functions 0';\n")
    finding = await named(postgres, "functions")
    assert finding.what == f"public.outbox_publish({arguments}) is of version 0, not 2."
    assert finding.commands == ("faststream-outbox schema sql --functions",)
    await create_functions(postgres)
    assert await visit(postgres) == []


async def test_a_role_that_may_not_call_the_functions_is_named(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    await create_functions(postgres)
    async with role_of(postgres, outbox_postgres, "producer") as (role, engine):
        finding = await named(postgres, "functions", engine=engine, kind="producer")
        assert (finding.severity, role in finding.what) == ("info", True)
        assert await cured(postgres, finding, engine=engine, kind="producer")
