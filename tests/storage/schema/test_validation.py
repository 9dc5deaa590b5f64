import logging
import re
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import MetaData, Table, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from faststream_outbox._installation import needs_extra
from faststream_outbox.embedded.database import Database
from faststream_outbox.storage.schema.tables import (
    make_dlq_table,
    make_outbox_table,
    make_shards_table,
    outbox_autovacuum_ddl,
)
from faststream_outbox.storage.schema.validation import OutboxSchemaWarning, validate_schema

ROW = "INSERT INTO outbox (queue, payload) VALUES ('orders', '\\x01'), ('orders', '\\x02')"


@pytest.fixture
async def engine(outbox_postgres: Database, driver: str) -> AsyncIterator[AsyncEngine]:
    # A new connection each time, because some tests change what connections begin with.
    engine = create_async_engine(outbox_postgres.url(driver), poolclass=NullPool)
    yield engine
    await engine.dispose()


@pytest.fixture
def run(outbox_postgres: Database) -> Callable[..., None]:
    """Run statements, each in a transaction of its own, as a person at a prompt would."""

    def run(*statements: str) -> None:
        with psycopg.connect(outbox_postgres.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    return run


async def create(engine: AsyncEngine, metadata: MetaData) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)


async def created_outbox(engine: AsyncEngine) -> Table:
    metadata = MetaData()
    table = make_outbox_table(metadata)
    await create(engine, metadata)
    return table


async def refusal(engine: AsyncEngine, *tables: Table | None, check_autovacuum: bool = False) -> str:
    with pytest.raises(RuntimeError) as raised:
        await validate_schema(engine, *tables, check_autovacuum=check_autovacuum)  # type: ignore[arg-type]
    return str(raised.value)


def problems(message: str) -> list[str]:
    return [line.removeprefix("-- ") for line in message.splitlines() if line.startswith("-- ")]


def ddl(message: str) -> list[str]:
    """The statements of a message, as they would be pasted from it."""
    lines = [line for line in message.splitlines()[1:] if not line.startswith("-- ")]
    return [statement for statement in "\n".join([*lines, ""]).split(";\n") if statement]


FAULTS = {
    # columns
    "no headers": ("ALTER TABLE outbox DROP headers", ["column headers is missing"]),
    "no lease": ("ALTER TABLE outbox DROP lease_expires_at", ["column lease_expires_at is missing"]),
    "no counter": ("ALTER TABLE outbox DROP attempts_count", ["column attempts_count is missing"]),
    "no due time": (
        "ALTER TABLE outbox DROP next_attempt_at",
        ["column next_attempt_at is missing", "index (queue, next_attempt_at, id) WHERE entity_key IS NULL is missing"],
    ),
    "no id": (
        "ALTER TABLE outbox DROP id",
        [
            "column id is missing",
            "the primary key is missing",
            "index (queue, entity_key, id)",
            "index (queue, next_att",
        ],
    ),
    # types
    "short queue": ("ALTER TABLE outbox ALTER queue TYPE varchar(20)", ["column queue is character varying(20), not "]),
    "short key": ("ALTER TABLE outbox ALTER entity_key TYPE varchar(255)", ["column entity_key is character varying"]),
    "padded queue": ("ALTER TABLE outbox ALTER queue TYPE char(255)", ["column queue is character(255), not VARCHAR"]),
    "no time zone": (
        "ALTER TABLE outbox ALTER lease_expires_at TYPE timestamp",
        ["column lease_expires_at is timestamp without time zone, not TIMESTAMP WITH TIME ZONE"],
    ),
    "coarse time": (
        "ALTER TABLE outbox ALTER next_attempt_at TYPE timestamptz(0)",
        ["column next_attempt_at is timestamp(0) with time zone"],
    ),
    "json": ("ALTER TABLE outbox ALTER headers TYPE json", ["column headers is json, not JSONB"]),
    "int counter": (
        "ALTER TABLE outbox ALTER attempts_count TYPE int",
        ["column attempts_count is integer, not BIGINT"],
    ),
    "text counter": (
        (
            "ALTER TABLE outbox ALTER attempts_count DROP DEFAULT, ALTER attempts_count TYPE text, "
            "ALTER attempts_count SET DEFAULT 'none'"
        ),
        ["column attempts_count is text, not BIGINT", "the default of column attempts_count is 'none'::text, not 0"],
    ),
    "text payload": (
        r"ALTER TABLE outbox ALTER payload TYPE text USING 'C:\x'",
        ["column payload is text, not BYTEA"],
    ),
    "text token": ("ALTER TABLE outbox ALTER acquired_token TYPE text", ["column acquired_token is text, not UUID"]),
    "array": (
        "ALTER TABLE outbox DROP acquired_token, ADD acquired_token uuid[]",
        ["column acquired_token is uuid[], not UUID"],
    ),
    "type unknown to SQLAlchemy": (
        "ALTER TABLE outbox DROP entity_key, ADD entity_key xml",
        [
            "column entity_key is xml, not TEXT",
            "index (queue, entity_key, id) WHERE entity_key IS NOT NULL is missing",
            "index (queue, next_attempt_at, id) WHERE entity_key IS NULL is missing",
        ],
    ),
    "int id": (
        "ALTER TABLE outbox ALTER id TYPE int",
        ["column id is integer, not BIGINT", "sequence public.outbox_id_seq ends where integer does"],
    ),
    # nullability
    "key needed": (
        "DELETE FROM outbox; ALTER TABLE outbox ALTER entity_key SET NOT NULL",
        ["column entity_key is NOT NULL, and must take NULL"],
    ),
    "queue optional": ("ALTER TABLE outbox ALTER queue DROP NOT NULL", ["column queue takes NULL, and must not"]),
    "lease optional": (
        "ALTER TABLE outbox ALTER lease_expires_at DROP NOT NULL; UPDATE outbox SET lease_expires_at = NULL",
        ["column lease_expires_at takes NULL, and must not"],
    ),
    "lease optional and without default": (
        (
            "ALTER TABLE outbox ALTER lease_expires_at DROP NOT NULL, ALTER lease_expires_at DROP DEFAULT; "
            "UPDATE outbox SET lease_expires_at = NULL"
        ),
        ["the default of column lease_expires_at is missing", "column lease_expires_at takes NULL, and must not"],
    ),
    # defaults
    "no default": (
        "ALTER TABLE outbox ALTER created_at DROP DEFAULT",
        ["the default of column created_at is missing, not now()"],
    ),
    "other function": (
        "ALTER TABLE outbox ALTER next_attempt_at SET DEFAULT clock_timestamp()",
        ["the default of column next_attempt_at is clock_timestamp(), not now()"],
    ),
    "frozen now": (
        "ALTER TABLE outbox ALTER created_at SET DEFAULT '2024-01-01'::timestamptz",
        ["the default of column created_at is '2024-01-01"],
    ),
    "infinity": (
        "ALTER TABLE outbox ALTER lease_expires_at SET DEFAULT 'infinity'",
        ["the default of column lease_expires_at is 'infinity'::timestamp with time zone, not '-infinity'"],
    ),
    "counts from one": (
        "ALTER TABLE outbox ALTER deliveries_count SET DEFAULT 1",
        ["the default of column deliveries_count is 1, not 0"],
    ),
    "a timer by default": (
        "ALTER TABLE outbox ALTER timer_id SET DEFAULT 'NULL'",
        ["the default of column timer_id is 'NULL'::character varying, not NULL"],
    ),
    "generated": (
        "ALTER TABLE outbox DROP attempts_count, ADD attempts_count bigint NOT NULL GENERATED ALWAYS AS (1) STORED",
        ["column attempts_count is generated"],
    ),
    # the sequence of id
    "no identity": ("ALTER TABLE outbox ALTER id DROP IDENTITY", ["column id is not drawn from a sequence"]),
    "own numbers": (
        "ALTER TABLE outbox ALTER id DROP IDENTITY; ALTER TABLE outbox ALTER id SET DEFAULT (random() * 1e9)::bigint",
        ["column id is not drawn from a sequence"],
    ),
    "cache": (
        "ALTER SEQUENCE outbox_id_seq CACHE 32",
        ["sequence public.outbox_id_seq hands out numbers ahead, so that they break the order of rows"],
    ),
    "cycle": ("ALTER SEQUENCE outbox_id_seq CYCLE", ["sequence public.outbox_id_seq starts again at its end"]),
    "downwards": (
        "ALTER SEQUENCE outbox_id_seq INCREMENT -1 NO MINVALUE",
        ["sequence public.outbox_id_seq counts down"],
    ),
    "serial once an int": (
        (
            "ALTER TABLE outbox ALTER id DROP IDENTITY; CREATE SEQUENCE numbers AS int CACHE 2 START 3; "
            "ALTER TABLE outbox ALTER id SET DEFAULT nextval('numbers')"
        ),
        ["sequence public.numbers hands out numbers ahead", "sequence public.numbers ends where integer does"],
    ),
    "a sequence turned round": (
        (
            "ALTER TABLE outbox ALTER id DROP IDENTITY; CREATE SEQUENCE numbers; "
            "ALTER TABLE outbox ALTER id SET DEFAULT -nextval('numbers')"
        ),
        ["column id is not drawn from a sequence"],
    ),
    # the primary key
    "no primary key": ("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", ["the primary key is missing"]),
    "other primary key": (
        "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ADD PRIMARY KEY (queue, id)",
        ["the primary key is CREATE UNIQUE INDEX outbox_pkey ON public.outbox USING btree (queue, id), not on id"],
    ),
    "no primary key, no identity": (
        (
            "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ALTER id DROP IDENTITY; "
            "ALTER TABLE outbox ALTER id DROP NOT NULL"
        ),
        ["the primary key is missing", "column id is not drawn from a sequence", "column id takes NULL, and must not"],
    ),
    # columns of others
    "a column that nobody fills": (
        "ALTER TABLE outbox ADD tenant int NOT NULL DEFAULT 1; ALTER TABLE outbox ALTER tenant DROP DEFAULT",
        ["column tenant is not ours and NOT NULL without a default"],
    ),
    # indexes
    "no ready index": (
        "DROP INDEX outbox_ready_idx",
        ["index (queue, next_attempt_at, id) WHERE entity_key IS NULL is"],
    ),
    "no key index": ("DROP INDEX outbox_key_idx", ["index (queue, entity_key, id) WHERE entity_key IS NOT NULL is"]),
    "no timer index": ("DROP INDEX outbox_timer_uq", ["unique index (queue, timer_id) WHERE timer_id IS NOT NULL is"]),
    "other order": (
        (
            "DROP INDEX outbox_ready_idx; CREATE INDEX outbox_ready_idx ON outbox (queue, id, next_attempt_at) "
            "WHERE entity_key IS NULL"
        ),
        ["index (queue, next_attempt_at, id) WHERE entity_key IS NULL is missing; the one of its name is another"],
    ),
    "descending": (
        (
            "DROP INDEX outbox_ready_idx; CREATE INDEX outbox_ready_idx ON outbox (queue, next_attempt_at DESC, id) "
            "WHERE entity_key IS NULL"
        ),
        ["index (queue, next_attempt_at, id)"],
    ),
    "other operators": (
        (
            "DROP INDEX outbox_key_idx; CREATE INDEX outbox_key_idx ON outbox (queue, entity_key text_pattern_ops, id) "
            "WHERE entity_key IS NOT NULL"
        ),
        ["index (queue, entity_key, id)"],
    ),
    "other collation": (
        (
            'DROP INDEX outbox_key_idx; CREATE INDEX outbox_key_idx ON outbox (queue, entity_key COLLATE "POSIX", id) '
            "WHERE entity_key IS NOT NULL"
        ),
        ["index (queue, entity_key, id)"],
    ),
    "other predicate": (
        (
            "DROP INDEX outbox_key_idx; CREATE INDEX outbox_key_idx ON outbox (queue, entity_key, id) "
            "WHERE entity_key IS NULL"
        ),
        ["index (queue, entity_key, id) WHERE entity_key IS NOT NULL is missing; the one of its name is another"],
    ),
    "no predicate": (
        "DROP INDEX outbox_key_idx; CREATE INDEX outbox_key_idx ON outbox (queue, entity_key, id)",
        ["index (queue, entity_key, id)"],
    ),
    "not unique": (
        (
            "DROP INDEX outbox_timer_uq; CREATE INDEX outbox_timer_uq ON outbox (queue, timer_id) "
            "WHERE timer_id IS NOT NULL"
        ),
        ["unique index (queue, timer_id)"],
    ),
    "more columns": (
        (
            "DROP INDEX outbox_timer_uq; CREATE UNIQUE INDEX outbox_timer_uq ON outbox (queue, timer_id, id) "
            "WHERE timer_id IS NOT NULL"
        ),
        ["unique index (queue, timer_id)"],
    ),
    "covering": (
        (
            "DROP INDEX outbox_ready_idx; CREATE INDEX outbox_ready_idx ON outbox (queue, next_attempt_at, id) "
            "INCLUDE (lease_expires_at) WHERE entity_key IS NULL"
        ),
        ["index (queue, next_attempt_at, id)"],
    ),
    "an expression": (
        (
            "DROP INDEX outbox_timer_uq; CREATE UNIQUE INDEX outbox_timer_uq ON outbox (lower(queue), timer_id) "
            "WHERE timer_id IS NOT NULL"
        ),
        ["unique index (queue, timer_id)"],
    ),
    "invalid": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_ready_idx'::regclass",
        ["index (queue, next_attempt_at, id) WHERE entity_key IS NULL is missing; the one of its name is another"],
    ),
    "a constraint": (
        "DROP INDEX outbox_timer_uq; ALTER TABLE outbox ADD CONSTRAINT outbox_timer_uq UNIQUE (queue, timer_id)",
        ["unique index (queue, timer_id)"],
    ),
    "a CHECK of leases": (
        "ALTER TABLE outbox ADD CONSTRAINT outbox_lease_ck CHECK ((acquired_token IS NULL) = (acquired_at IS NULL))",
        ["the CHECK outbox_lease_ck is not ours, and leases violate it"],
    ),
    "a stranger bears the name": (
        "DROP INDEX outbox_timer_uq; CREATE TABLE outbox_timer_uq (id int)",
        ["unique index (queue, timer_id)"],
    ),
}


@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_told_and_its_ddl_mends_it(engine: AsyncEngine, run: Callable[..., None], fault: str) -> None:
    breaking, told = FAULTS[fault]
    table = await created_outbox(engine)
    run(ROW)
    await validate_schema(engine, table)
    run(*breaking.split("; "))

    message = await refusal(engine, table)

    assert message.startswith("Outbox schema mismatch: ")
    assert len(problems(message)) == len(told), message
    for problem, expected in zip(problems(message), told, strict=True):
        assert problem.startswith(f"public.outbox: {expected}"), message
    run(*ddl(message))
    await validate_schema(engine, table)
    run(ROW)


FINE = {
    "other names": (
        "ALTER INDEX outbox_ready_idx RENAME TO a; ALTER INDEX outbox_key_idx RENAME TO b; "
        "ALTER INDEX outbox_timer_uq RENAME TO c; ALTER INDEX outbox_pkey RENAME TO d"
    ),
    "wider names": "ALTER TABLE outbox ALTER queue TYPE varchar(300), ALTER timer_id TYPE text",
    "unlimited names": "ALTER TABLE outbox ALTER queue TYPE varchar, ALTER entity_key TYPE varchar",
    "microseconds": "ALTER TABLE outbox ALTER created_at TYPE timestamptz(6)",
    "always": "ALTER TABLE outbox ALTER id SET GENERATED ALWAYS",
    "serial": (
        "ALTER TABLE outbox ALTER id DROP IDENTITY; CREATE SEQUENCE outbox_id_seq OWNED BY outbox.id; "
        "ALTER TABLE outbox ALTER id SET DEFAULT nextval('outbox_id_seq')"
    ),
    "a sequence of its own": (
        'ALTER TABLE outbox ALTER id DROP IDENTITY; CREATE SCHEMA other; CREATE SEQUENCE other."Odd 1"; '
        "ALTER TABLE outbox ALTER id SET DEFAULT nextval('other.\"Odd 1\"')"
    ),
    "current_timestamp": "ALTER TABLE outbox ALTER created_at SET DEFAULT CURRENT_TIMESTAMP",
    "transaction_timestamp": "ALTER TABLE outbox ALTER created_at SET DEFAULT transaction_timestamp()",
    "zero as text": "ALTER TABLE outbox ALTER attempts_count SET DEFAULT '0'",
    "zero with a cast": "ALTER TABLE outbox ALTER attempts_count SET DEFAULT 0::bigint",
    "null by default": "ALTER TABLE outbox ALTER timer_id SET DEFAULT NULL",
    "a default that is never used": "ALTER TABLE outbox ALTER queue SET DEFAULT 'orders'",
    "own columns": (
        "CREATE DOMAIN kind AS text DEFAULT 'plain'; "
        "ALTER TABLE outbox ADD note text, ADD tenant int NOT NULL DEFAULT 1, ADD serial bigserial, ADD kind kind "
        "NOT NULL, ADD number int GENERATED ALWAYS AS IDENTITY, ADD size int NOT NULL GENERATED ALWAYS AS (1) STORED"
    ),
    "own indexes": (
        "CREATE INDEX ON outbox (lower(queue)); CREATE UNIQUE INDEX ON outbox (queue, id) INCLUDE (payload); "
        "CREATE INDEX ON outbox USING gin (headers); ALTER TABLE outbox ADD UNIQUE (id, queue)"
    ),
    "own references": "ALTER TABLE outbox ADD parent bigint REFERENCES outbox (id), ADD CHECK (queue <> 'none')",
    "an index with a fillfactor": "ALTER INDEX outbox_ready_idx SET (fillfactor = 70)",
    "a neighbour": "CREATE TABLE neighbour (note xml)",
    "a namesake elsewhere": "CREATE SCHEMA other; CREATE TABLE other.outbox (id int)",
}


@pytest.mark.parametrize("extra", FINE)
async def test_extras_and_equivalents_are_fine(
    engine: AsyncEngine, run: Callable[..., None], extra: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = await created_outbox(engine)
    run(*FINE[extra].split("; "))
    with caplog.at_level(logging.INFO, "alembic"):
        await validate_schema(engine, table)
    assert "Detected removed" not in caplog.text
    run(ROW)


async def test_a_virtual_column_is_replaced(engine: AsyncEngine, run: Callable[..., None]) -> None:
    table = await created_outbox(engine)
    try:
        run("ALTER TABLE outbox DROP headers, ADD headers jsonb GENERATED ALWAYS AS ('{}') VIRTUAL")
    except psycopg.errors.SyntaxError:
        pytest.skip("virtual columns came with Postgres 18")
    message = await refusal(engine, table)
    assert problems(message) == ["public.outbox: column headers is generated"]
    run(*ddl(message))
    await validate_schema(engine, table)


async def test_the_serial_that_mends_goes_on_behind_the_rows(engine: AsyncEngine, run: Callable[..., None]) -> None:
    table = await created_outbox(engine)
    run("ALTER TABLE outbox ALTER id DROP IDENTITY", "INSERT INTO outbox (id, queue, payload) VALUES (41, 'q', '')")
    run(*ddl(await refusal(engine, table)), ROW)
    async with engine.connect() as connection:
        ids = (await connection.exec_driver_sql("SELECT id FROM outbox ORDER BY id")).scalars().all()
    assert ids == [41, 42, 43]


async def test_no_text_is_cut_by_the_ddl(engine: AsyncEngine, run: Callable[..., None]) -> None:
    table = await created_outbox(engine)
    run(
        "ALTER TABLE outbox ALTER queue TYPE char(300)",
        "INSERT INTO outbox (queue, payload) SELECT repeat('q', 256), ''",
    )
    with pytest.raises(psycopg.errors.StringDataRightTruncation):
        run(*ddl(await refusal(engine, table)))


NAMES = [
    ("outbox", None),
    ("outbox", "app"),
    ("Order", None),
    ('50% "o\'dd" :n\nb; --', 'App; "x" %s'),
    ("ausgänge", "select"),
]


@pytest.mark.parametrize(("name", "schema"), NAMES)
async def test_absent_tables_are_created_by_the_ddl(
    engine: AsyncEngine, run: Callable[..., None], name: str, schema: str | None
) -> None:
    metadata = MetaData()
    outbox = make_outbox_table(metadata, name, schema=schema, fillfactor=60)
    dlq = make_dlq_table(metadata, f"{name} dlq", schema=schema)

    message = await refusal(engine, outbox)
    assert len(problems(message)) == 1
    run(*ddl(message))
    await validate_schema(engine, outbox, check_autovacuum=True)

    message = await refusal(engine, outbox, dlq)
    assert len(problems(message)) == 1
    run(*ddl(message))
    await validate_schema(engine, outbox, dlq, check_autovacuum=True)


@pytest.mark.parametrize(("name", "schema"), NAMES)
async def test_names_are_quoted_and_qualified(
    engine: AsyncEngine, run: Callable[..., None], name: str, schema: str | None
) -> None:
    metadata = MetaData()
    table = make_outbox_table(metadata, name, schema=schema)
    run(*ddl(await refusal(engine, table)))
    quoted = sql.Identifier(schema or "public", name).as_string()
    ready = sql.Identifier(schema or "public", f"{name}_ready_idx").as_string()
    bare = sql.Identifier(f"{name}_ready_idx").as_string()
    run(
        f"ALTER TABLE {quoted} DROP headers, ALTER queue TYPE varchar(5), ALTER entity_key SET NOT NULL, "
        f'ALTER created_at DROP DEFAULT, ALTER id DROP IDENTITY, ADD "T%x" int NOT NULL, RESET (fillfactor)',
        f"DROP INDEX {ready}",
        f"CREATE INDEX {bare} ON {quoted} (queue)",
    )
    message = await refusal(engine, table)
    assert len(problems(message)) == 7
    run(*ddl(message))
    with pytest.warns(OutboxSchemaWarning) as warned:
        await validate_schema(engine, table)
    run(*ddl(str(warned[0].message)))
    await validate_schema(engine, table)


async def test_the_faults_of_both_tables_come_in_one_error(engine: AsyncEngine, run: Callable[..., None]) -> None:
    metadata = MetaData()
    outbox, dlq = make_outbox_table(metadata), make_dlq_table(metadata)
    await create(engine, metadata)
    await validate_schema(engine, outbox, dlq)
    run(
        "ALTER TABLE outbox DROP headers, RESET (autovacuum_vacuum_threshold)",
        "DROP INDEX outbox_timer_uq",
        "ALTER TABLE outbox_dlq ALTER failed_at DROP DEFAULT, ALTER failure_reason TYPE varchar(8), DROP original_id",
        "DROP INDEX outbox_dlq_queue_failed_idx",
    )
    message = await refusal(engine, outbox, dlq, check_autovacuum=True)
    assert [problem.split(" (")[0] for problem in problems(message)] == [
        "public.outbox: column headers is missing",
        "public.outbox: unique index",
        "public.outbox_dlq: column original_id is missing",
        "public.outbox_dlq: column failure_reason is character varying(8), not VARCHAR(64)",
        "public.outbox_dlq: the default of column failed_at is missing, not now()",
        "public.outbox_dlq: index",
        "public.outbox: autovacuum_vacuum_threshold is not set",
    ]
    run(*ddl(message))
    await validate_schema(engine, outbox, dlq, check_autovacuum=True)


async def test_an_unqualified_table_is_found_on_the_search_path(
    engine: AsyncEngine, run: Callable[..., None], outbox_postgres: Database
) -> None:
    table = make_outbox_table(MetaData())
    qualified = MetaData()
    make_outbox_table(qualified, schema="app")
    run("CREATE SCHEMA app")
    await create(engine, qualified)
    assert "table outbox is missing" in await refusal(engine, table)

    run(f'ALTER DATABASE "{outbox_postgres.name}" SET search_path = public, app')
    await validate_schema(engine, table)
    run("DROP INDEX app.outbox_ready_idx", "CREATE TABLE outbox_ready_idx (id int)")
    message = await refusal(engine, table)
    assert ddl(message) == [
        "CREATE INDEX CONCURRENTLY outbox_ready_idx ON app.outbox (queue, next_attempt_at, id) WHERE entity_key IS NULL"
    ]
    run(*ddl(message))
    await validate_schema(engine, table)


async def test_a_qualified_table_is_not_mistaken_for_a_namesake_on_the_search_path(
    engine: AsyncEngine, run: Callable[..., None], outbox_postgres: Database
) -> None:
    qualified = MetaData()
    make_outbox_table(qualified, schema="app")
    run("CREATE SCHEMA app", f'ALTER DATABASE "{outbox_postgres.name}" SET search_path = public, app')
    await create(engine, qualified)
    message = await refusal(engine, make_outbox_table(MetaData(), schema="public"))
    assert problems(message) == ["table public.outbox is missing"]


async def test_the_table_of_shards_is_looked_at_too(engine: AsyncEngine, run: Callable[..., None]) -> None:
    metadata = MetaData()
    outbox, shards = make_outbox_table(metadata), make_shards_table(metadata)
    await create(engine, metadata)
    await validate_schema(engine, outbox, None, shards)
    run("ALTER TABLE outbox_shards DROP token, DROP CONSTRAINT outbox_shards_pkey")
    message = await refusal(engine, outbox, None, shards)
    assert problems(message)[0] == "public.outbox_shards: column token is missing"
    assert "the primary key is missing" in message
    run(*ddl(message))
    await validate_schema(engine, outbox, None, shards)


async def test_a_naming_convention_names_the_primary_key(engine: AsyncEngine, run: Callable[..., None]) -> None:
    metadata = MetaData(
        schema="app", naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(column_0_label)s", "uq": "uq"}
    )
    outbox, dlq = make_outbox_table(metadata), make_dlq_table(metadata)
    run("CREATE SCHEMA app")
    await create(engine, metadata)
    await validate_schema(engine, outbox, dlq)
    run("ALTER TABLE app.outbox DROP CONSTRAINT pk_outbox")
    message = await refusal(engine, outbox, dlq)
    assert ddl(message) == ["ALTER TABLE app.outbox ADD CONSTRAINT pk_outbox PRIMARY KEY (id)"]
    run(*ddl(message))
    await validate_schema(engine, outbox, dlq)


async def test_reading_the_catalogs_is_all_it_does(
    engine: AsyncEngine, run: Callable[..., None], outbox_postgres: Database
) -> None:
    metadata = MetaData()
    outbox, dlq = make_outbox_table(metadata, schema="app"), make_dlq_table(metadata, schema="app")
    role = f"reader_of_{outbox_postgres.name}"
    run("CREATE SCHEMA app", f"CREATE ROLE {role}", f"GRANT USAGE ON SCHEMA app TO {role}")
    await create(engine, metadata)

    @event.listens_for(engine.sync_engine, "connect")
    def become_a_reader(connection: Any, _record: object) -> None:
        connection.cursor().execute(f"SET ROLE {role}")
        connection.cursor().execute("SET default_transaction_read_only = on")
        connection.commit()

    try:
        async with engine.connect() as connection:
            assert await connection.scalar(text("SELECT current_user")) == role
            with pytest.raises(DBAPIError, match="permission denied"):
                await connection.execute(text("SELECT 1 FROM app.outbox"))
        await validate_schema(engine, outbox, dlq, check_autovacuum=True)
    finally:
        run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_options_that_differ_are_a_warning_whose_ddl_mends_them(
    engine: AsyncEngine, run: Callable[..., None]
) -> None:
    table = await created_outbox(engine)
    run("ALTER TABLE outbox SET (fillfactor = 90, autovacuum_vacuum_threshold = 50)")
    run("ALTER TABLE outbox RESET (autovacuum_vacuum_cost_delay)")

    with pytest.warns(OutboxSchemaWarning) as warned:
        await validate_schema(engine, table)

    message = str(warned[0].message)
    assert len(warned) == 1
    assert problems(message) == [
        "public.outbox: fillfactor is 90",
        "public.outbox: autovacuum_vacuum_threshold is 50, autovacuum_vacuum_cost_delay is not set",
    ]
    assert ddl(message) == [
        "ALTER TABLE public.outbox SET (fillfactor = 50)",
        "ALTER TABLE public.outbox SET (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0)",
    ]
    run(*ddl(message))
    await validate_schema(engine, table)


async def test_untuned_autovacuum_is_an_error_where_that_is_asked(
    engine: AsyncEngine, run: Callable[..., None]
) -> None:
    table = await created_outbox(engine)
    run("ALTER TABLE outbox RESET (autovacuum_vacuum_scale_factor)")
    message = await refusal(engine, table, check_autovacuum=True)
    assert message.startswith("Outbox autovacuum not tuned: ")
    assert ddl(message) == ["ALTER TABLE public.outbox SET (autovacuum_vacuum_scale_factor = 0)"]
    run(*ddl(message))
    await validate_schema(engine, table, check_autovacuum=True)


async def test_switched_off_autovacuum_is_untuned(engine: AsyncEngine, run: Callable[..., None]) -> None:
    table = await created_outbox(engine)
    run("ALTER TABLE outbox SET (autovacuum_enabled = off)")
    message = await refusal(engine, table, check_autovacuum=True)
    assert ddl(message) == ["ALTER TABLE public.outbox SET (autovacuum_enabled = true)"]
    run(*ddl(message))
    await validate_schema(engine, table, check_autovacuum=True)


async def test_fillfactor_stays_a_warning(engine: AsyncEngine, run: Callable[..., None]) -> None:
    table = await created_outbox(engine)
    run("ALTER TABLE outbox RESET (fillfactor)")
    with pytest.warns(OutboxSchemaWarning, match="fillfactor is 100"):
        await validate_schema(engine, table, check_autovacuum=True)


async def test_options_are_compared_by_value(engine: AsyncEngine, run: Callable[..., None]) -> None:
    metadata = MetaData()
    table = make_outbox_table(metadata, fillfactor=100)
    await create(engine, metadata)
    run("ALTER TABLE outbox RESET (fillfactor)", "ALTER TABLE outbox SET (autovacuum_vacuum_scale_factor = 0.00)")
    await validate_schema(engine, table, check_autovacuum=True)


async def test_the_ddl_for_autovacuum_is_what_validation_asks_for(
    engine: AsyncEngine, run: Callable[..., None]
) -> None:
    table = await created_outbox(engine)
    run("ALTER TABLE outbox RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_insert_threshold)")
    run(outbox_autovacuum_ddl("outbox"))
    await validate_schema(engine, table, check_autovacuum=True)


async def test_a_fault_is_an_error_even_where_warnings_are(engine: AsyncEngine, run: Callable[..., None]) -> None:
    table = await created_outbox(engine)
    run("ALTER TABLE outbox RESET (fillfactor), DROP headers")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert problems(await refusal(engine, table)) == ["public.outbox: column headers is missing"]


async def test_validation_leaves_the_defined_table_as_it_is(engine: AsyncEngine) -> None:
    table = make_outbox_table(MetaData(naming_convention={"pk": "pk_%(table_name)s"}))
    first = await refusal(engine, table)
    await create(engine, table.metadata)
    await validate_schema(engine, table)
    async with engine.begin() as connection:
        await connection.run_sync(table.metadata.drop_all)
    assert await refusal(engine, table) == first


async def test_without_alembic_it_says_what_to_install(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alembic.autogenerate", None)
    monkeypatch.delitem(sys.modules, "faststream_outbox.storage.schema.comparison", raising=False)
    with pytest.raises(ImportError, match=re.escape(needs_extra("validate_schema()", "validate"))):
        await validate_schema(engine, make_outbox_table(MetaData()))


def test_alembic_is_not_imported_before_it_is_needed() -> None:
    program = "import sys, faststream_outbox.storage.schema.validation; sys.exit('alembic' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
