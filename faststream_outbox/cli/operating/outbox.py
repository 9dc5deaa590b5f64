"""The outbox that a command works on: found by its settings, or in an application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields

from sqlalchemy import MetaData, Table
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.cli.database import describe_error, make_engine
from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.operating.application import load_broker
from faststream_outbox.cli.operating.settings import OperatorSettings
from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage import (
    PostgresStore,
    make_dlq_table,
    make_inbox_table,
    make_outbox_table,
    make_shards_table,
)
from faststream_outbox.storage.schema.discovery import existing_tables
from faststream_outbox.storage.schema.operations_tables import make_audit_table, make_control_table, make_nodes_table


@dataclass(frozen=True)
class Tables:
    """The tables of an outbox."""

    outbox: Table
    dlq: Table | None = None
    control: Table | None = None
    audit: Table | None = None
    nodes: Table | None = None
    shards: Table | None = None
    inbox: Table | None = None

    def given(self) -> dict[str, Table]:
        """Return the tables that there are, by their kinds."""
        found = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: table for name, table in found if table is not None}


@dataclass(frozen=True)
class Outbox:
    """An outbox whose tables exist."""

    engine: AsyncEngine
    tables: Tables

    @property
    def operations(self) -> OutboxOperations:
        """What can be read and done."""
        tables = self.tables
        return OutboxOperations(
            self.engine,
            outbox_table=tables.outbox,
            dlq_table=tables.dlq,
            control_table=tables.control,
            audit_table=tables.audit,
            nodes_table=tables.nodes,
        )


def define_tables(settings: OperatorSettings) -> Tables:
    """Return the tables that the settings name, under their usual names where they name none."""
    if settings.app is not None:
        return _tables_of(load_broker(settings.app).client.store, settings.app)
    metadata, schema = MetaData(), settings.schema_name
    try:
        return Tables(
            make_outbox_table(metadata, settings.table, schema=schema),
            make_dlq_table(metadata, settings.name_of("dlq"), schema=schema),
            make_control_table(metadata, settings.name_of("control"), schema=schema),
            make_audit_table(metadata, settings.name_of("audit"), schema=schema),
            make_nodes_table(metadata, settings.name_of("nodes"), schema=schema),
            make_shards_table(metadata, settings.name_of("shards"), schema=schema),
            make_inbox_table(metadata, settings.name_of("inbox"), schema=schema),
        )
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _tables_of(store: object, app: str) -> Tables:
    if not isinstance(store, PostgresStore):
        raise UsageError(f"--app: the broker of {app} is not on Postgres.")
    return Tables(
        store.outbox_table,
        store.dlq_table,
        store.control_table,
        store.audit_table,
        store.nodes_table,
        store.shards_table,
    )


@asynccontextmanager
async def open_outbox(settings: OperatorSettings, *, must_exist: bool = True) -> AsyncIterator[Outbox]:
    """Connect, and find out which tables exist.

    Raise `ProgramError` if there is no connection, or a table that was named does not exist; unless the command
    itself says what is wrong with them.
    """
    engine = _engine_of(settings)
    try:
        try:
            tables = await _existing(engine, settings)
        except ProgramError:
            if must_exist:
                raise
            tables = _needed(settings)
        yield Outbox(engine, tables)
    finally:
        await engine.dispose()


def _engine_of(settings: OperatorSettings) -> AsyncEngine:
    if settings.app is None:
        return make_engine(settings)
    store = load_broker(settings.app).client.store
    engine = store.engine if isinstance(store, PostgresStore) else None
    # A broker that only publishes has none.
    return engine or make_engine(settings)


def _needed(settings: OperatorSettings) -> Tables:
    """Return the tables without which a command cannot work: those that were named."""
    defined = define_tables(settings).given()
    kinds = defined if settings.app is not None else ["outbox", *settings.given_tables]
    return Tables(**{kind: defined[kind] for kind in kinds})


async def _existing(engine: AsyncEngine, settings: OperatorSettings) -> Tables:
    defined = define_tables(settings).given()
    try:
        async with engine.connect() as connection:
            found = await existing_tables(connection, defined.values())
    except Exception as error:  # each driver raises its own errors
        raise ProgramError(
            f"The database cannot be reached: {describe_error(error)}; check --dsn (OUTBOX_DSN) and the server."
        ) from error
    names = {str(table) for table in found}
    for kind, table in _needed(settings).given().items():
        if str(table) not in names:
            option = "--table" if kind == "outbox" else f"--{kind}-table"
            raise ProgramError(
                f"The table {table} is not in the database: create it, `faststream-outbox schema sql` prints "
                f"its DDL; or name another by {option} or --schema."
            )
    return Tables(**{kind: table for kind, table in defined.items() if table in found})
