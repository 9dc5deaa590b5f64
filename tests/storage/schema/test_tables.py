import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, MetaData, create_engine

from faststream_outbox.embedded.database import Database
from faststream_outbox.storage.schema.tables import (
    AUTOVACUUM,
    SCHEMA_COMMENT,
    make_dlq_table,
    make_outbox_table,
    notify_channel,
    outbox_autovacuum_ddl,
)

OUTBOX_COLUMNS = [
    ("id", "bigint", True, "d", None),
    ("queue", "character varying(255)", True, "", None),
    ("entity_key", "text", False, "", None),
    ("payload", "bytea", True, "", None),
    ("headers", "jsonb", False, "", None),
    ("timer_id", "character varying(255)", False, "", None),
    ("created_at", "timestamp with time zone", True, "", "now()"),
    ("next_attempt_at", "timestamp with time zone", True, "", "now()"),
    ("acquired_at", "timestamp with time zone", False, "", None),
    ("acquired_token", "uuid", False, "", None),
    ("lease_expires_at", "timestamp with time zone", True, "", "'-infinity'::timestamp with time zone"),
    ("attempts_count", "bigint", True, "", "0"),
    ("deliveries_count", "bigint", True, "", "0"),
    ("first_attempt_at", "timestamp with time zone", False, "", None),
    ("last_attempt_at", "timestamp with time zone", False, "", None),
]
OUTBOX_INDEXES = [
    "CREATE INDEX outbox_key_idx ON {schema}.outbox USING btree (queue, entity_key, id) WHERE (entity_key IS NOT NULL)",
    "CREATE UNIQUE INDEX outbox_pkey ON {schema}.outbox USING btree (id)",
    (
        "CREATE INDEX outbox_ready_idx ON {schema}.outbox USING btree (queue, next_attempt_at, id) "
        "WHERE (entity_key IS NULL)"
    ),
    "CREATE UNIQUE INDEX outbox_timer_uq ON {schema}.outbox USING btree (queue, timer_id) WHERE (timer_id IS NOT NULL)",
]
OUTBOX_OPTIONS = [
    "fillfactor=50",
    "autovacuum_vacuum_scale_factor=0",
    "autovacuum_vacuum_threshold=2000",
    "autovacuum_vacuum_cost_delay=0",
    "autovacuum_vacuum_insert_scale_factor=0",
    "autovacuum_vacuum_insert_threshold=100000",
]
DLQ_COLUMNS = [
    ("id", "bigint", True, "d", None),
    ("original_id", "bigint", True, "", None),
    ("queue", "character varying(255)", True, "", None),
    ("entity_key", "text", False, "", None),
    ("payload", "bytea", True, "", None),
    ("headers", "jsonb", False, "", None),
    ("timer_id", "character varying(255)", False, "", None),
    ("attempts_count", "bigint", True, "", "0"),
    ("deliveries_count", "bigint", True, "", "0"),
    ("created_at", "timestamp with time zone", True, "", None),
    ("first_attempt_at", "timestamp with time zone", False, "", None),
    ("last_attempt_at", "timestamp with time zone", False, "", None),
    ("failed_at", "timestamp with time zone", True, "", "now()"),
    ("failure_reason", "character varying(64)", True, "", None),
    ("last_exception", "text", False, "", None),
]
DLQ_INDEXES = [
    (
        "CREATE INDEX outbox_dlq_correlation_idx ON {schema}.outbox_dlq USING btree "
        "(substr((headers ->> 'correlation_id'::text), 1, 255), id) "
        "WHERE ((headers ->> 'correlation_id'::text) IS NOT NULL)"
    ),
    "CREATE UNIQUE INDEX outbox_dlq_pkey ON {schema}.outbox_dlq USING btree (id)",
    "CREATE INDEX outbox_dlq_queue_failed_idx ON {schema}.outbox_dlq USING btree (queue, failed_at)",
]


@dataclass(frozen=True)
class Described:
    """A table as the catalogs have it."""

    columns: list[tuple[str, str, bool, str, str | None]]
    indexes: list[str]
    options: list[str] | None
    sequence_caches: list[int]
    constraints: list[str]
    comment: str | None


def describe(database: Database, table: str) -> Described | None:
    with psycopg.connect(database.dsn) as connection:

        def rows(query: bytes) -> list[tuple[object, ...]]:
            return connection.execute(query, {"table": table}).fetchall()

        if not rows(b"SELECT 1 WHERE to_regclass(%(table)s) IS NOT NULL"):
            return None
        columns = rows(
            b"""SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text,
                       pg_get_expr(d.adbin, d.adrelid)
                  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                 WHERE a.attrelid = %(table)s::regclass AND a.attnum > 0 ORDER BY a.attnum"""
        )
        indexes = rows(
            b"""SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                 WHERE i.indrelid = %(table)s::regclass ORDER BY c.relname"""
        )
        [(options, comment)] = rows(
            b"SELECT reloptions, obj_description(oid, 'pg_class') FROM pg_class WHERE oid = %(table)s::regclass"
        )
        caches = rows(
            b"""SELECT s.seqcache FROM pg_sequence s JOIN pg_depend d ON d.objid = s.seqrelid AND d.deptype = 'i'
                 WHERE d.refobjid = %(table)s::regclass"""
        )
        constraints = rows(
            b"""SELECT conname || ': ' || pg_get_constraintdef(oid) FROM pg_constraint
                 WHERE conrelid = %(table)s::regclass AND contype <> 'n' ORDER BY conname"""
        )
    return Described(
        columns=columns,  # type: ignore[arg-type]  # rows as the driver gives them
        indexes=[str(index) for (index,) in indexes],
        options=options,  # type: ignore[arg-type]  # same
        sequence_caches=[cache for (cache,) in caches],  # type: ignore[misc]  # same
        constraints=[str(constraint) for (constraint,) in constraints],
        comment=comment,  # type: ignore[arg-type]  # same
    )


@pytest.fixture
def engine(outbox_postgres: Database) -> Iterator[Engine]:
    engine = create_engine(outbox_postgres.url("psycopg"))
    yield engine
    engine.dispose()


def run(database: Database, *statements: str) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.parametrize("schema", [None, "app"])
def test_create_all_makes_the_designed_tables(outbox_postgres: Database, engine: Engine, schema: str | None) -> None:
    metadata = MetaData()
    make_outbox_table(metadata, schema=schema)
    make_dlq_table(metadata, schema=schema)
    run(outbox_postgres, "CREATE SCHEMA app")
    metadata.create_all(engine)
    there = schema or "public"
    assert describe(outbox_postgres, f"{there}.outbox") == Described(
        columns=OUTBOX_COLUMNS,
        indexes=[index.format(schema=there) for index in OUTBOX_INDEXES],
        options=OUTBOX_OPTIONS,
        sequence_caches=[1],
        constraints=["outbox_pkey: PRIMARY KEY (id)"],
        comment=SCHEMA_COMMENT,
    )
    assert describe(outbox_postgres, f"{there}.outbox_dlq") == Described(
        columns=DLQ_COLUMNS,
        indexes=[index.format(schema=there) for index in DLQ_INDEXES],
        options=None,
        sequence_caches=[1],
        constraints=["outbox_dlq_pkey: PRIMARY KEY (id)"],
        comment=SCHEMA_COMMENT,
    )


def test_the_schema_of_the_metadata_is_used(outbox_postgres: Database, engine: Engine) -> None:
    metadata = MetaData(schema="app")
    make_outbox_table(metadata)
    make_dlq_table(metadata)
    run(outbox_postgres, "CREATE SCHEMA app")
    metadata.create_all(engine)
    assert describe(outbox_postgres, "app.outbox") is not None
    assert describe(outbox_postgres, "app.outbox_dlq") is not None


@pytest.mark.parametrize("fillfactor", [10, 100])
def test_the_fillfactor_is_the_users_choice(outbox_postgres: Database, engine: Engine, fillfactor: int) -> None:
    metadata = MetaData()
    make_outbox_table(metadata, fillfactor=fillfactor)
    metadata.create_all(engine)
    described = describe(outbox_postgres, "outbox")
    assert described is not None
    assert described.options == [f"fillfactor={fillfactor}", *OUTBOX_OPTIONS[1:]]


@pytest.mark.parametrize("fillfactor", [9, 101, 0, -1, 50.0, "50", True, None])
def test_a_wrong_fillfactor_is_refused(fillfactor: object) -> None:
    metadata = MetaData()
    with pytest.raises(ValueError, match="fillfactor is a percentage from 10 to 100, not "):
        make_outbox_table(metadata, fillfactor=fillfactor)  # type: ignore[arg-type]  # that is the point
    assert not metadata.tables


ODD = '50% "o\'dd" :n; --'


def test_odd_names_are_quoted(outbox_postgres: Database, engine: Engine) -> None:
    metadata = MetaData()
    make_outbox_table(metadata, ODD, schema=ODD)
    make_dlq_table(metadata, f"{ODD} dead", schema=ODD)
    quoted = '"' + ODD.replace('"', '""') + '"'
    run(outbox_postgres, f"CREATE SCHEMA {quoted}")
    metadata.create_all(engine)
    described = describe(outbox_postgres, f"{quoted}.{quoted}")
    assert described is not None
    assert described.columns == OUTBOX_COLUMNS
    assert len(described.indexes) == len(OUTBOX_INDEXES)


class TestNames:
    # What is added to the table's name, in the longest name that is made of it.
    LONGEST_OUTBOX = 63 - len("_ready_idx")
    LONGEST_DLQ = 63 - len("_queue_failed_idx")

    def test_the_longest_names_fit(self, outbox_postgres: Database, engine: Engine) -> None:
        metadata = MetaData()
        outbox = make_outbox_table(metadata, "o" * self.LONGEST_OUTBOX)
        dlq = make_dlq_table(metadata, "d" * self.LONGEST_DLQ)
        metadata.create_all(engine)
        for table in (outbox, dlq):
            described = describe(outbox_postgres, table.name)
            assert described is not None
            for index in table.indexes:
                assert any(f" {index.name} " in definition for definition in described.indexes)

    def test_a_longer_index_is_refused(self) -> None:
        name = "o" * (self.LONGEST_OUTBOX + 1)
        metadata = MetaData()
        with pytest.raises(ValueError, match=rf"index name '{name}_ready_idx' is 64 bytes long .* 1 bytes shorter"):
            make_outbox_table(metadata, name)
        with pytest.raises(ValueError, match=r"index name 'd*_queue_failed_idx' is 64 bytes long .* 1 bytes shorter"):
            make_dlq_table(metadata, "d" * (self.LONGEST_DLQ + 1))
        assert not metadata.tables

    def test_a_longer_table_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"table name 'o{70}' is 70 bytes long .* 7 bytes shorter"):
            make_outbox_table(MetaData(), "o" * 70)
        with pytest.raises(ValueError, match=r"table name 'd{70}' is 70 bytes long .* 7 bytes shorter"):
            make_dlq_table(MetaData(), "d" * 70)

    def test_a_longer_channel_is_refused(self) -> None:
        schema = "s" * 50
        told = f"NOTIFY channel name 'outbox_{schema}_outbox' is 64 bytes long .* 1 bytes shorter"
        with pytest.raises(ValueError, match=told):
            make_outbox_table(MetaData(), schema=schema)
        with pytest.raises(ValueError, match=told):
            make_outbox_table(MetaData(schema=schema))

    def test_the_longest_channel_fits(self, outbox_postgres: Database) -> None:
        schema = "s" * 49
        make_outbox_table(MetaData(), schema=schema)
        with psycopg.connect(outbox_postgres.dsn, autocommit=True) as connection:
            channel = notify_channel("outbox", schema)
            connection.execute(f"LISTEN {channel}".encode())
            assert connection.execute("SELECT * FROM pg_listening_channels()").fetchall() == [(channel,)]

    def test_bytes_are_counted_not_characters(self) -> None:
        # 40 characters that fit, were they of one byte each.
        with pytest.raises(ValueError, match=r"is 80 bytes long .* 17 bytes shorter"):
            make_outbox_table(MetaData(), "ä" * 40)
        with pytest.raises(ValueError, match=r"is 80 bytes long .* 17 bytes shorter"):
            make_dlq_table(MetaData(), "ä" * 40)

    @pytest.mark.parametrize(("name", "fault"), [("", "is empty"), ("out\x00box", "NUL character")])
    def test_what_is_no_name_is_refused(self, name: str, fault: str) -> None:
        with pytest.raises(ValueError, match=fault):
            make_outbox_table(MetaData(), name)
        with pytest.raises(ValueError, match=fault):
            make_dlq_table(MetaData(), name)


class TestAutovacuumDdl:
    @pytest.mark.parametrize(("name", "schema"), [("outbox", None), ("outbox", "app"), ("Order", "select"), (ODD, ODD)])
    def test_it_gives_an_old_table_the_settings_of_a_new_one(
        self, outbox_postgres: Database, name: str, schema: str | None
    ) -> None:
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (schema or "public", name))
        run(outbox_postgres, f"CREATE SCHEMA {quoted.split('.')[0]}" if schema else "SELECT 1")
        run(outbox_postgres, f"CREATE TABLE {quoted} (id int) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1)")
        run(outbox_postgres, outbox_autovacuum_ddl(name, schema=schema))
        described = describe(outbox_postgres, quoted)
        assert described is not None
        assert described.options is not None
        assert sorted(described.options) == sorted(["fillfactor=70", *OUTBOX_OPTIONS[1:]])

    def test_its_numbers_can_be_chosen(self, outbox_postgres: Database) -> None:
        run(outbox_postgres, "CREATE TABLE outbox (id int)")
        run(
            outbox_postgres,
            outbox_autovacuum_ddl(
                vacuum_threshold=7, insert_threshold=8, vacuum_cost_delay=None, vacuum_cost_limit=900
            ),
        )
        described = describe(outbox_postgres, "outbox")
        assert described is not None
        assert described.options == [
            "autovacuum_vacuum_scale_factor=0",
            "autovacuum_vacuum_threshold=7",
            "autovacuum_vacuum_insert_scale_factor=0",
            "autovacuum_vacuum_insert_threshold=8",
            "autovacuum_vacuum_cost_limit=900",
        ]

    @pytest.mark.parametrize("number", [-1, True, 1.5, "0; DROP TABLE outbox"])
    def test_what_is_no_number_is_refused(self, number: object) -> None:
        with pytest.raises(ValueError, match="autovacuum_vacuum_threshold takes a whole number from 0 up, not "):
            outbox_autovacuum_ddl(vacuum_threshold=number)  # type: ignore[arg-type]  # that is the point

    def test_it_names_each_setting_of_a_new_table(self) -> None:
        assert all(f"{name} = {value}" in outbox_autovacuum_ddl() for name, value in AUTOVACUUM.items())


ENV = """
from alembic import context
from sqlalchemy import create_engine

config = context.config
schemas = config.attributes["schemas"]


def include_name(name, type_, parents):
    return type_ != "schema" or name in schemas


def record(migration_context, revision, directives):
    config.attributes["revisions"].append(directives[0])


engine = create_engine(config.get_main_option("sqlalchemy.url").replace("%%", "%"))
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=config.attributes["metadata"],
        compare_type=True,
        compare_server_default=True,
        include_schemas=True,
        include_name=include_name,
        process_revision_directives=record,
    )
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""


class Migrations:
    """A user's migration environment on disk, as `alembic init` makes it."""

    def __init__(self, folder: Path, database: Database, metadata: MetaData) -> None:
        self.config = Config(stdout=io.StringIO())
        self.config.set_main_option("script_location", str(folder))
        self.config.set_main_option("sqlalchemy.url", database.url("psycopg").replace("%", "%%"))
        self.config.attributes.update(
            metadata=metadata, schemas={None, *(table.schema for table in metadata.tables.values())}, revisions=[]
        )
        self.config.config_file_name = str(folder.parent / "alembic.ini")
        command.init(self.config, str(folder))
        (folder / "env.py").write_text(ENV)

    def autogenerate(self, message: str) -> bool:
        """Write a revision, and tell whether it does anything."""
        command.revision(self.config, message, autogenerate=True)
        return not self.config.attributes["revisions"][-1].upgrade_ops.is_empty()

    def upgrade(self) -> None:
        command.upgrade(self.config, "head")

    def downgrade(self) -> None:
        command.downgrade(self.config, "base")


@pytest.fixture
def migrations(tmp_path: Path, outbox_postgres: Database) -> Callable[[MetaData], Migrations]:
    return lambda metadata: Migrations(tmp_path / "migrations", outbox_postgres, metadata)


@pytest.mark.parametrize("schema", [None, "public", "app"])
@pytest.mark.parametrize("convention", [{}, {"pk": "pk_%(table_name)s", "ix": "ix_%(column_0_label)s"}])
def test_alembic_migrates_to_what_create_all_makes(
    outbox_postgres: Database,
    engine: Engine,
    migrations: Callable[[MetaData], Migrations],
    schema: str | None,
    convention: dict[str, str],
) -> None:
    metadata = MetaData(naming_convention=convention or None)
    make_outbox_table(metadata, schema=schema, fillfactor=60)
    make_dlq_table(metadata, schema=schema)
    names = [f"{schema or 'public'}.{name}" for name in ("outbox", "outbox_dlq")]
    run(outbox_postgres, "CREATE SCHEMA app")
    metadata.create_all(engine)
    created = [describe(outbox_postgres, name) for name in names]
    metadata.drop_all(engine)
    environment = migrations(metadata)

    assert environment.autogenerate("create")
    environment.upgrade()
    assert [describe(outbox_postgres, name) for name in names] == created
    assert None not in created

    assert not environment.autogenerate("nothing")
    environment.upgrade()
    assert [describe(outbox_postgres, name) for name in names] == created

    environment.downgrade()
    assert [describe(outbox_postgres, name) for name in names] == [None, None]


def test_alembic_sees_what_somebody_changed(
    outbox_postgres: Database, migrations: Callable[[MetaData], Migrations]
) -> None:
    metadata = MetaData()
    make_outbox_table(metadata)
    environment = migrations(metadata)
    environment.autogenerate("create")
    environment.upgrade()
    created = describe(outbox_postgres, "outbox")
    run(outbox_postgres, "ALTER TABLE outbox ALTER lease_expires_at DROP DEFAULT", "DROP INDEX outbox_timer_uq")
    run(outbox_postgres, "COMMENT ON TABLE outbox IS NULL")
    assert environment.autogenerate("mend")
    environment.upgrade()
    assert describe(outbox_postgres, "outbox") == created
