"""The tables of operators: what is paused, who did what, and which processes run."""

from functools import partial
from typing import NamedTuple

from sqlalchemy import BigInteger, Column, DateTime, Identity, Integer, MetaData, String, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from faststream_outbox.storage.schema.tables import (
    MAX_NAME_CHARS,
    SCHEMA_COMMENT,
    check_new_table,
    check_table,
    make_index,
)


class OperationsTables(NamedTuple):
    """The tables of `make_operations_tables`; each is optional for a broker.

    Example:
        tables = make_operations_tables(metadata)
        broker = OutboxBroker(
            engine,
            outbox_table=outbox_table,
            dlq_table=dlq_table,
            control_table=tables.control,
        )

    """

    control: Table
    """Which queues are paused, until when, by whom and why."""
    audit: Table
    """Which operator did what, when and why."""
    nodes: Table
    """Which processes read which queues, for people to read."""


def make_operations_tables(
    metadata: MetaData, prefix: str = "outbox", *, schema: str | None = None
) -> OperationsTables:
    """Define the tables of operators on your `MetaData`; your migrations create them.

    Args:
        metadata: Where the tables are defined.
        prefix: The beginning of their names: `outbox` makes `outbox_control`, `outbox_audit` and `outbox_nodes`.
        schema: Their schema; by default that of the metadata.

    Example:
        tables = make_operations_tables(metadata)
        broker = OutboxBroker(
            engine,
            outbox_table=outbox_table,
            dlq_table=dlq_table,
            control_table=tables.control,
            audit_table=tables.audit,
            nodes_table=tables.nodes,
        )

    """
    names = [f"{prefix}_{suffix}" for suffix in OperationsTables._fields]
    for name in names:
        check_new_table(metadata, name)
    control, audit, nodes = names
    return OperationsTables(
        make_control_table(metadata, control, schema=schema),
        make_audit_table(metadata, audit, schema=schema),
        make_nodes_table(metadata, nodes, schema=schema),
    )


def make_control_table(metadata: MetaData, table_name: str = "outbox_control", *, schema: str | None = None) -> Table:
    """Define the table of what operators ordered for a queue; one row for each queue and kind of order."""
    check_new_table(metadata, table_name)
    return Table(
        table_name,
        metadata,
        Column("queue", String(MAX_NAME_CHARS), primary_key=True),
        # "pause" is the only kind yet: part of the key, so that another kind needs no other key.
        Column("kind", String(64), primary_key=True, server_default=text("'pause'")),
        # NULL: until an operator ends it.
        Column("until", DateTime(timezone=True)),
        Column("reason", Text, nullable=False),
        Column("by", Text, nullable=False),
        Column("since", DateTime(timezone=True), nullable=False, server_default=text("now()")),
        schema=schema,
        comment=SCHEMA_COMMENT,
    )


def make_audit_table(metadata: MetaData, table_name: str = "outbox_audit", *, schema: str | None = None) -> Table:
    """Define the table of what operators did; a row is written in the transaction of the act."""
    check_new_table(metadata, table_name)
    return Table(
        table_name,
        metadata,
        Column("id", BigInteger, Identity(always=False), primary_key=True),
        Column("at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
        Column("by", Text, nullable=False),
        Column("action", String(64), nullable=False),
        Column("reason", Text, nullable=False),
        Column("target", JSONB(none_as_null=True), nullable=False, server_default=text("'{}'::jsonb")),
        Column("count", BigInteger, nullable=False, server_default=text("0")),
        # Pages of one action; pages of all follow the primary key.
        make_index(table_name, "action_idx", "action", "id"),
        schema=schema,
        comment=SCHEMA_COMMENT,
    )


def make_nodes_table(metadata: MetaData, table_name: str = "outbox_nodes", *, schema: str | None = None) -> Table:
    """Define the table of running processes; whether one is alive is known by its lock, not by its row."""
    check_new_table(metadata, table_name)
    return Table(
        table_name,
        metadata,
        # As in the tokens of its leases: `node_name`.
        Column("name", String(64), primary_key=True),
        Column("host", Text, nullable=False),
        Column("pid", Integer, nullable=False),
        Column("version", Text, nullable=False),
        Column("started_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
        Column("queues", ARRAY(Text), nullable=False),
        Column("strategy", Text),
        schema=schema,
        comment=SCHEMA_COMMENT,
    )


def check_operations_tables(control_table: Table | None, audit_table: Table | None, nodes_table: Table | None) -> None:
    """Raise unless each table that was given is one of `make_operations_tables`."""
    check = partial(check_table, made_by=make_operations_tables.__name__)
    if control_table is not None:
        check("control_table", control_table, make_control_table)
    if audit_table is not None:
        check("audit_table", audit_table, make_audit_table)
    if nodes_table is not None:
        check("nodes_table", nodes_table, make_nodes_table)
