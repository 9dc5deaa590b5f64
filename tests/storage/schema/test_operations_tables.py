import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from faststream_outbox import OperationsTables, OutboxBroker, make_dlq_table, make_operations_tables, make_outbox_table
from faststream_outbox.embedded.database import Database
from faststream_outbox.storage.schema.tables import CORRELATION_PREFIX
from faststream_outbox.storage.schema.validation import validate_schema
from tests.storage.schema.test_tables import Migrations, describe, migrations, run

__all__ = ["migrations"]  # a fixture


@pytest.fixture
def engine(outbox_postgres: Database) -> Iterator[Engine]:
    engine = create_engine(outbox_postgres.url("psycopg"))
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(outbox_postgres: Database) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(outbox_postgres.url("asyncpg"), poolclass=NullPool)
    yield engine
    await engine.dispose()


@pytest.mark.parametrize("schema", [None, "app"])
@pytest.mark.parametrize("convention", [{}, {"pk": "pk_%(table_name)s", "ix": "ix_%(column_0_label)s"}])
def test_alembic_migrates_to_what_create_all_makes(
    outbox_postgres: Database,
    engine: Engine,
    migrations: Callable[[MetaData], Migrations],
    schema: str | None,
    convention: dict[str, str],
) -> None:
    metadata = MetaData(naming_convention=convention or None)
    tables = make_operations_tables(metadata, "ops", schema=schema)
    assert [table.name for table in tables] == ["ops_control", "ops_audit", "ops_nodes"]
    names = [f"{schema or 'public'}.{table.name}" for table in tables]
    run(outbox_postgres, "CREATE SCHEMA app")
    metadata.create_all(engine)
    created = [describe(outbox_postgres, name) for name in names]
    assert None not in created
    metadata.drop_all(engine)
    environment = migrations(metadata)

    assert environment.autogenerate("create")
    environment.upgrade()
    assert [describe(outbox_postgres, name) for name in names] == created
    assert not environment.autogenerate("nothing")
    environment.downgrade()
    assert [describe(outbox_postgres, name) for name in names] == [None, None, None]


def test_alembic_adds_the_index_for_searches_to_an_older_table(
    outbox_postgres: Database,
    engine: Engine,
    migrations: Callable[[MetaData], Migrations],
) -> None:
    metadata = MetaData()
    make_dlq_table(metadata)
    metadata.create_all(engine)
    created = describe(outbox_postgres, "outbox_dlq")
    run(outbox_postgres, "DROP INDEX outbox_dlq_correlation_idx")
    environment = migrations(metadata)
    assert environment.autogenerate("add the index")
    environment.upgrade()
    assert describe(outbox_postgres, "outbox_dlq") == created
    assert not environment.autogenerate("nothing")


async def test_the_ddl_of_validation_makes_the_tables_and_mends_them(
    async_engine: AsyncEngine, outbox_postgres: Database
) -> None:
    metadata = MetaData()
    outbox, operations = make_outbox_table(metadata), make_operations_tables(metadata)
    broker = OutboxBroker(
        async_engine,
        outbox_table=outbox,
        control_table=operations.control,
        audit_table=operations.audit,
        nodes_table=operations.nodes,
        logger=None,
    )
    said = await refusal(broker)
    assert [
        name for name in ("outbox_control", "outbox_audit", "outbox_nodes") if f"{name} is missing" not in said
    ] == []
    run(outbox_postgres, *ddl(said))
    await broker.validate_schema()
    run(
        outbox_postgres,
        "ALTER TABLE outbox_control DROP CONSTRAINT outbox_control_pkey, DROP kind",
        "DROP INDEX outbox_audit_action_idx",
        "ALTER TABLE outbox_nodes ALTER queues TYPE text USING queues::text",
    )
    said = await refusal(broker)
    for problem in (
        "column kind is missing",
        "the primary key is missing, not on queue, kind",
        "index (action, id) is missing",
        "column queues is text, not TEXT[]",
    ):
        assert problem in said
    run(outbox_postgres, *ddl(said))
    await broker.validate_schema()


async def refusal(broker: OutboxBroker) -> str:
    with pytest.raises(RuntimeError) as raised:
        await broker.validate_schema()
    return str(raised.value)


def ddl(said: str) -> list[str]:
    lines = "\n".join(line for line in said.splitlines()[1:] if not line.startswith("-- "))
    return [statement for statement in re.split(r";\n|;$", lines) if statement.strip()]


async def test_a_correlation_id_of_any_length_is_stored_and_found_by_the_index(async_engine: AsyncEngine) -> None:
    metadata = MetaData()
    outbox, dlq = make_outbox_table(metadata), make_dlq_table(metadata)
    long = "é" * 100_000
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(
            text(
                "INSERT INTO outbox_dlq (original_id, queue, payload, headers, created_at, failure_reason) "
                "SELECT n, 'q', '', jsonb_build_object('correlation_id', CAST(:long AS text) || n), now(), 'rejected' "
                "FROM generate_series(1, 3) AS n"
            ),
            {"long": long},
        )
        search = (
            f"SELECT original_id FROM outbox_dlq WHERE {CORRELATION_PREFIX} = substr(CAST(:id AS text), 1, 255) "
            "AND headers ->> 'correlation_id' = CAST(:id AS text) ORDER BY id"
        )
        await connection.execute(text("SET LOCAL enable_seqscan = off"))
        assert list((await connection.execute(text(search), {"id": f"{long}2"})).scalars()) == [2]
        plan = "\n".join((await connection.execute(text(f"EXPLAIN {search}"), {"id": "x"})).scalars())
    assert "outbox_dlq_correlation_idx" in plan
    await validate_schema(async_engine, outbox, dlq)


@pytest.mark.parametrize("name", ["control_table", "audit_table", "nodes_table"])
def test_a_table_that_is_another_is_refused(name: str) -> None:
    metadata = MetaData()
    outbox = make_outbox_table(metadata)
    given: dict[str, Any] = {name: outbox}
    with pytest.raises(ValueError, match=rf"{name} 'outbox' lacks .*: make it with make_operations_tables\(metadata\)"):
        OutboxBroker(outbox_table=outbox, **given)
    given = {name: "outbox_control"}
    with pytest.raises(TypeError, match=rf"{name} is a Table, made by make_operations_tables\(metadata\), not str"):
        OutboxBroker(outbox_table=outbox, **given)


def test_a_prefix_that_is_too_long_is_refused_and_defines_nothing() -> None:
    metadata = MetaData()
    with pytest.raises(ValueError, match="bytes shorter"):
        make_operations_tables(metadata, "p" * 60)
    assert not metadata.tables
    assert isinstance(make_operations_tables(metadata, "p" * 46), OperationsTables)
