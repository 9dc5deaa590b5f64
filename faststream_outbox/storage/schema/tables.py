"""The tables, defined on the user's `MetaData`, for Alembic to migrate and for every statement to read."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TextClause,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import Uuid

# The version of the tables, raised when tables of the version before need DDL. Processes of both versions must work on
# the new tables, because an upgrade rolls (docs/upgrading.md).
SCHEMA_VERSION: Final = 2
# A comment on each table records the version: Alembic migrates it, pg_dump keeps it, and it needs no further table.
SCHEMA_COMMENT: Final = f"faststream-outbox schema {SCHEMA_VERSION}"
_RECORDED_VERSION: Final = re.compile(r"faststream-outbox schema (\d+)")

# Postgres cuts longer names silently, and two names that were cut to the same text collide.
MAX_IDENTIFIER_BYTES: Final = 63

# The width of `queue` and `timer_id`, and the longest ordering key: two of them fit a btree entry together.
MAX_NAME_CHARS: Final = 255

# The longest id of a message in an inbox: with the longest consumer's name it fits a btree entry of 2704 bytes.
MAX_MESSAGE_ID_BYTES: Final = 1024

# All rows of this table are deleted soon: vacuum by their count, not by a share of the table, and at full speed.
AUTOVACUUM: Final[Mapping[str, int]] = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 2000,
    "autovacuum_vacuum_cost_delay": 0,
    "autovacuum_vacuum_insert_scale_factor": 0,
    "autovacuum_vacuum_insert_threshold": 100_000,
}

# The key in `Table.info` under which a table has its storage options, to be compared with the live table.
STORAGE_OPTIONS: Final = "faststream_outbox.storage_options"

# The key in `Index.info` that marks an index for searches of operators: without it nothing fails, and they are slow.
FOR_SEARCHES: Final = "faststream_outbox.for_searches"
# The indexed part of a dead letter's correlation id, written as Postgres shows it.
CORRELATION_PREFIX: Final = "substr(headers ->> 'correlation_id'::text, 1, 255)"


def make_outbox_table(
    metadata: MetaData, table_name: str = "outbox", *, schema: str | None = None, fillfactor: int = 50
) -> Table:
    """Define the outbox on your `MetaData`; your migrations create it.

    Args:
        metadata: Where the table is defined.
        table_name: Its name.
        schema: Its schema; by default that of the metadata.
        fillfactor: How much of a page inserts fill, in percent. The rest is for the claimed version of the rows: a
            claim then touches no index. With half of the page that holds for nine claims in ten or more, with 45 for
            all, whatever the rows look like; 100 halves the disk that a standing backlog takes, at three times the
            write-ahead log per claim.

    Example:
        metadata = MetaData()
        outbox_table = make_outbox_table(metadata)

    """
    if isinstance(fillfactor, bool) or not isinstance(fillfactor, int) or not 10 <= fillfactor <= 100:  # noqa: PLR2004 - Postgres' own bounds
        raise ValueError(f"fillfactor is a percentage from 10 to 100, not {fillfactor!r}.")
    _check_metadata(metadata)
    check_identifier("table", table_name)
    check_identifier("NOTIFY channel", notify_channel(table_name, schema or metadata.schema))
    options = {"fillfactor": fillfactor, **AUTOVACUUM}
    return Table(
        table_name,
        metadata,
        # Drawn one by one (CACHE 1, the default): the order of keyed rows depends on it.
        Column("id", BigInteger, Identity(always=False), primary_key=True),
        Column("queue", String(MAX_NAME_CHARS), nullable=False),
        Column("entity_key", Text),
        Column("payload", LargeBinary, nullable=False),
        Column("headers", JSONB(none_as_null=True)),
        Column("timer_id", String(MAX_NAME_CHARS)),
        Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
        # Columns that change stand last, and only next_attempt_at is indexed: a claim is then a heap-only (HOT) update.
        Column("next_attempt_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
        Column("acquired_at", DateTime(timezone=True)),
        Column("acquired_token", Uuid),
        _lease_expires_at(),
        Column("attempts_count", BigInteger, nullable=False, server_default=text("0")),
        Column("deliveries_count", BigInteger, nullable=False, server_default=text("0")),
        Column("first_attempt_at", DateTime(timezone=True)),
        Column("last_attempt_at", DateTime(timezone=True)),
        make_index(table_name, "ready_idx", "queue", "next_attempt_at", "id", where="entity_key IS NULL"),
        make_index(table_name, "key_idx", "queue", "entity_key", "id", where="entity_key IS NOT NULL"),
        make_index(table_name, "timer_uq", "queue", "timer_id", unique=True, where="timer_id IS NOT NULL"),
        schema=schema,
        comment=SCHEMA_COMMENT,
        info={STORAGE_OPTIONS: options},
        **_storage_keyword(options),
    )


def make_dlq_table(metadata: MetaData, table_name: str = "outbox_dlq", *, schema: str | None = None) -> Table:
    """Define the table that keeps rows which failed for good; a row moves here in the statement that deletes it.

    Args:
        metadata: Where the table is defined.
        table_name: Its name.
        schema: Its schema; by default that of the metadata.

    Example:
        dlq_table = make_dlq_table(metadata)

    """
    _check_metadata(metadata)
    check_identifier("table", table_name)
    return Table(
        table_name,
        metadata,
        Column("id", BigInteger, Identity(always=False), primary_key=True),
        Column("original_id", BigInteger, nullable=False),
        Column("queue", String(MAX_NAME_CHARS), nullable=False),
        Column("entity_key", Text),
        Column("payload", LargeBinary, nullable=False),
        Column("headers", JSONB(none_as_null=True)),
        Column("timer_id", String(MAX_NAME_CHARS)),
        Column("attempts_count", BigInteger, nullable=False, server_default=text("0")),
        Column("deliveries_count", BigInteger, nullable=False, server_default=text("0")),
        Column("created_at", DateTime(timezone=True), nullable=False),
        Column("first_attempt_at", DateTime(timezone=True)),
        Column("last_attempt_at", DateTime(timezone=True)),
        Column("failed_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
        Column("failure_reason", String(64), nullable=False),
        Column("last_exception", Text),
        make_index(table_name, "queue_failed_idx", "queue", "failed_at"),
        # For operators: a btree holds no text of any length, and a search compares the whole text after this part.
        make_index(
            table_name,
            "correlation_idx",
            text(CORRELATION_PREFIX),
            "id",
            where="(headers ->> 'correlation_id'::text) IS NOT NULL",
            info={FOR_SEARCHES: True},
        ),
        schema=schema,
        comment=SCHEMA_COMMENT,
    )


def make_inbox_table(metadata: MetaData, table_name: str = "outbox_inbox", *, schema: str | None = None) -> Table:
    """Define the table of an `Inbox`: which consumer has handled which message.

    Args:
        metadata: Where the table is defined.
        table_name: Its name.
        schema: Its schema; by default that of the metadata.

    Example:
        inbox_table = make_inbox_table(metadata)

    """
    check_new_table(metadata, table_name)
    return Table(
        table_name,
        metadata,
        Column("consumer", String(MAX_NAME_CHARS), primary_key=True),
        Column("message_id", Text, primary_key=True),
        Column("seen_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
        # Each consumer has a retention of its own.
        make_index(table_name, "seen_idx", "consumer", "seen_at"),
        schema=schema,
        comment=SCHEMA_COMMENT,
    )


def make_shards_table(metadata: MetaData, table_name: str = "outbox_shards", *, schema: str | None = None) -> Table:
    """Define the table of which process holds which shard of a queue's keys; `HashShards()` needs it.

    Args:
        metadata: Where the table is defined.
        table_name: Its name.
        schema: Its schema; by default that of the metadata.

    Example:
        shards_table = make_shards_table(metadata)
        broker = OutboxBroker(
            engine, outbox_table=outbox_table, dlq_table=dlq_table, shards_table=shards_table
        )

    """
    check_new_table(metadata, table_name)
    return Table(
        table_name,
        metadata,
        Column("queue", String(MAX_NAME_CHARS), primary_key=True),
        Column("shard", Integer, primary_key=True, autoincrement=False),
        Column("token", Uuid),
        # For people to read: the host and the process.
        Column("holder", Text),
        _lease_expires_at(),
        schema=schema,
        comment=SCHEMA_COMMENT,
    )


def check_tables(outbox_table: Table, dlq_table: Table | None, shards_table: Table | None = None) -> None:
    """Raise unless each table was made by its own function above."""
    check_table("outbox_table", outbox_table, make_outbox_table)
    if dlq_table is not None:
        check_table("dlq_table", dlq_table, make_dlq_table)
    if shards_table is not None:
        check_table("shards_table", shards_table, make_shards_table)


def check_table(name: str, table: object, make: Callable[[MetaData], Table], *, made_by: str | None = None) -> None:
    """Raise unless the table was made by `make`; `made_by` is the public function that calls it."""
    made_by = made_by or make.__name__
    if not isinstance(table, Table):
        raise TypeError(f"{name} is a Table, made by {made_by}(metadata), not {type(table).__name__}.")
    lacking = [each.name for each in make(MetaData()).columns if each.name not in table.columns]
    if lacking:
        raise ValueError(f"{name} {table.name!r} lacks {', '.join(lacking)}: make it with {made_by}(metadata).")


def outbox_autovacuum_ddl(
    table_name: str = "outbox",
    *,
    schema: str | None = None,
    vacuum_threshold: int = AUTOVACUUM["autovacuum_vacuum_threshold"],
    insert_threshold: int = AUTOVACUUM["autovacuum_vacuum_insert_threshold"],
    vacuum_cost_delay: int | None = AUTOVACUUM["autovacuum_vacuum_cost_delay"],
    vacuum_cost_limit: int | None = None,
) -> str:
    """Return the `ALTER TABLE` that gives an existing table the autovacuum settings a new one is created with.

    Args:
        table_name: The name of the table.
        schema: Its schema.
        vacuum_threshold: After how many dead rows it is vacuumed.
        insert_threshold: After how many new rows it is vacuumed.
        vacuum_cost_delay: How many milliseconds a vacuum pauses after each portion of work; None leaves the server's.
        vacuum_cost_limit: How large such a portion is; None leaves the server's.

    Example:
        op.execute(outbox_autovacuum_ddl("outbox"))  # in an Alembic migration

    """
    options: dict[str, int | None] = {
        **AUTOVACUUM,
        "autovacuum_vacuum_threshold": vacuum_threshold,
        "autovacuum_vacuum_insert_threshold": insert_threshold,
        "autovacuum_vacuum_cost_delay": vacuum_cost_delay,
        "autovacuum_vacuum_cost_limit": vacuum_cost_limit,
    }
    for name, value in options.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"{name} takes a whole number from 0 up, not {value!r}.")
    settings = ", ".join(f"{name} = {value}" for name, value in options.items() if value is not None)
    return f"ALTER TABLE {quoted_name(table_name, schema)} SET ({settings})"


def recorded_version(comment: str | None) -> int | None:
    """Return the schema version that a table's comment records, alone or among other words; `None` without one."""
    found = _RECORDED_VERSION.search(comment or "")
    return int(found[1]) if found else None


def record_version(comment: str | None) -> str:
    """Return a table's comment with our schema version recorded in it, and its other words as they are."""
    if not comment:
        return SCHEMA_COMMENT
    recorded, number = _RECORDED_VERSION.subn(SCHEMA_COMMENT, comment)
    return recorded if number else f"{comment} ({SCHEMA_COMMENT})"


def notify_channel(table_name: str, schema: str | None = None) -> str:
    """Return the name of the channel that wakes the subscribers of a table."""
    return f"outbox_{schema}_{table_name}" if schema else f"outbox_{table_name}"


def quoted_name(table_name: str, schema: str | None = None) -> str:
    """Return a table's name quoted for a statement, with its schema if it has one."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in (schema, table_name) if part)


def _storage_keyword(options: Mapping[str, int]) -> dict[str, Any]:
    if "with" in dict(postgresql.dialect.construct_arguments or ())[Table]:
        return {"postgresql_with": dict(options)}
    # SQLAlchemy 2.0 has no keyword for storage options, but writes what follows USING as it is given.
    settings = ", ".join(f"{name} = {value}" for name, value in options.items())
    return {"postgresql_using": f"heap WITH ({settings})"}


def make_index(
    table_name: str,
    suffix: str,
    *columns: str | TextClause,
    unique: bool = False,
    where: str | None = None,
    info: dict[Any, Any] | None = None,
) -> Index:
    """Return an index whose name is that of its table and a suffix; raise if the name is too long for Postgres."""
    name = check_identifier("index", f"{table_name}_{suffix}")
    return Index(name, *columns, unique=unique, postgresql_where=None if where is None else text(where), info=info)


def _lease_expires_at() -> Column[Any]:
    never = text("'-infinity'::timestamp with time zone")
    return Column("lease_expires_at", DateTime(timezone=True), nullable=False, server_default=never)


def check_new_table(metadata: object, table_name: str) -> None:
    """Raise unless a table of this name, with a primary key of its own, can be defined there."""
    _check_metadata(metadata)
    check_identifier("table", table_name)
    check_identifier("index", f"{table_name}_pkey")  # as Postgres itself will name it


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, MetaData):
        raise TypeError(f"metadata is a MetaData, such as Base.metadata, not {metadata!r}.")


def check_identifier(kind: str, name: str) -> str:
    """Return a name that Postgres keeps as it is; raise for one that it would cut or refuse."""
    if not name:
        raise ValueError(f"The {kind} name is empty.")
    if "\x00" in name:
        raise ValueError(f"The {kind} name {name!r} holds a NUL character, which Postgres cannot store.")
    length = len(name.encode())
    if length > MAX_IDENTIFIER_BYTES:
        raise ValueError(
            f"The {kind} name {name!r} is {length} bytes long and Postgres keeps only {MAX_IDENTIFIER_BYTES}: "
            f"choose a table name that is {length - MAX_IDENTIFIER_BYTES} bytes shorter."
        )
    return name
