"""A defined table against the live one: every fault, with the DDL that mends it.

Alembic says which columns are absent and which differ in type or nullability. What it does not compare, or compares by
running expressions on the server (defaults, sequences, the primary key, all that makes an index), the catalogs tell.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Connection, DateTime, Index, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateColumn, CreateTable, DefaultClause
from sqlalchemy.types import TEXT, VARCHAR, NullType, TypeEngine

from faststream_outbox.storage.catalog import LiveColumn, LiveIndex, LiveTable, schema_exists, taken_names
from faststream_outbox.storage.schema import STORAGE_OPTIONS

# A paramstyle without percent signs: with the default one each "%" of a name would be doubled, for a driver to halve.
_DIALECT: Final = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]  # SQLAlchemy's own gap

# What Postgres writes back for the expressions that mean the same.
_SAME_DEFAULT: Final = {"CURRENT_TIMESTAMP": "now()", "transaction_timestamp()": "now()"}
_CONSTANT: Final = re.compile(r"\(?'?(-?\w+)'?\)?(?:::[\w ]+)?")
_NULL: Final = re.compile(r"NULL(?:::.*)?")
_NEXTVAL: Final = re.compile(r"nextval\('.+'::regclass\)")

# What Postgres assumes of a table that does not say.
_UNSET_OPTIONS: Final = {"fillfactor": "100", "autovacuum_enabled": "true"}
_OFF: Final = frozenset({"false", "off", "no", "0"})


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and the statements that put it right."""

    problem: str
    ddl: tuple[str, ...]

    def __str__(self) -> str:
        # A comment and statements, to be pasted as they are; a line break in a name must not end the comment.
        return "\n".join([f"-- {' '.join(self.problem.split())}", *(f"{statement};" for statement in self.ddl)])


def absent_table(connection: Connection, table: Table) -> Fault:
    """Write the DDL of a table that is not there at all."""
    name = _DIALECT.identifier_preparer.format_table(table)
    create_table = str(CreateTable(table).compile(dialect=_DIALECT)).strip()
    schema_ddl = []
    if table.schema and not schema_exists(connection, table.schema):
        schema_ddl.append(f"CREATE SCHEMA {_quote(table.schema)}")
    taken = taken_names(connection, table.schema, _index_names(table))
    index_ddl = [f"CREATE {_index_clause(index, name, taken)}" for index in _indexes(table)]
    return Fault(f"table {name} is missing", (*schema_ddl, create_table, *index_ddl))


class TableComparison:
    """One table that is there, as defined and as it stands."""

    def __init__(self, connection: Connection, table: Table, live: LiveTable) -> None:
        self._connection = connection
        self._table = table
        self._live = live
        self._name = _qualified(live.schema, table.name)

    def faults(self) -> Iterator[Fault]:
        """Yield what the table lacks, in an order in which the DDL can run."""
        changes = _ask_alembic(self._connection, self._table, self._live)
        there = [(column, self._live.columns[column.name]) for column in self._table.columns if column.name in self._live.columns]
        yield from (self._missing_column(column) for column in self._table.columns if ("add_column", column.name) in changes)
        yield from (self._wrong_type(column, live) for column, live in there if ("modify_type", column.name) in changes)
        yield from self._primary_key_faults()
        for column, live in there:
            yield from self._sequence_faults(column, live) if column.identity else self._default_faults(column, live)
        yield from (self._wrong_nullability(column) for column, _ in there if ("modify_nullable", column.name) in changes)
        yield from self._extra_column_faults()
        yield from self._index_faults()

    def storage_fault(self, prefix: str) -> Fault | None:
        """Say which of the storage options of this prefix differ from the defined ones."""
        wanted = dict(self._table.info.get(STORAGE_OPTIONS, {}))
        if wanted:
            wanted["autovacuum_enabled"] = True
        found = {option: self._live.options.get(option, _UNSET_OPTIONS.get(option)) for option in wanted}
        differing = [
            option for option in wanted if option.startswith(prefix) and not _same_option(wanted[option], found[option])
        ]
        if not differing:
            return None
        problem = ", ".join(f"{option} is {found[option] or 'not set'}" for option in differing)
        settings = ", ".join(f"{option} = {str(wanted[option]).lower()}" for option in differing)
        return Fault(f"{self._name}: {problem}", (f"ALTER TABLE {self._name} SET ({settings})",))

    def _fault(self, problem: str, *ddl: str) -> Fault:
        return Fault(f"{self._name}: {problem}", ddl)

    def _alter(self, column: Column[Any], *actions: str) -> str:
        return f"ALTER TABLE {self._name} " + ", ".join(f"ALTER COLUMN {_quote(column.name)} {a}" for a in actions)

    def _missing_column(self, column: Column[Any]) -> Fault:
        filled = column.nullable or column.server_default is not None
        return self._fault(
            f"column {column.name} is missing" + ("" if filled else " (existing rows, if any, need a value first)"),
            f"ALTER TABLE {self._name} ADD COLUMN {CreateColumn(column).compile(dialect=_DIALECT)}",
        )

    def _wrong_type(self, column: Column[Any], live: LiveColumn) -> Fault:
        name, wanted = _quote(column.name), column.type.compile(dialect=_DIALECT)
        match column.type:
            case LargeBinary():  # a cast would read backslashes as escapes
                using = f"convert_to({name}::text, 'UTF8')"
            case String():  # a cast to varchar(n) would cut what is too long
                using = f"{name}::text"
            case _:
                using = f"{name}::{wanted}"
        actions = [f"TYPE {wanted} USING {using}"]
        if live.default and not live.generated and not column.identity:
            # The old default may have no cast to the new type.
            default = _default_of(column)
            actions = ["DROP DEFAULT", *actions, *([f"SET DEFAULT {default}"] if default else [])]
        return self._fault(f"column {column.name} is {live.type}, not {wanted}", self._alter(column, *actions))

    def _wrong_nullability(self, column: Column[Any]) -> Fault:
        if column.nullable:
            return self._fault(f"column {column.name} is NOT NULL, but may be empty", self._alter(column, "DROP NOT NULL"))
        name = _quote(column.name)
        fill = [f"UPDATE {self._name} SET {name} = DEFAULT WHERE {name} IS NULL"] if _default_of(column) else []
        return self._fault(f"column {column.name} is not NOT NULL", *fill, self._alter(column, "SET NOT NULL"))

    def _default_faults(self, column: Column[Any], live: LiveColumn) -> Iterator[Fault]:
        wanted = _default_of(column)
        if live.generated == "v":
            yield self._fault(
                f"column {column.name} is generated and cannot be written",
                f"ALTER TABLE {self._name} DROP COLUMN {_quote(column.name)}, "
                f"ADD COLUMN {CreateColumn(column).compile(dialect=_DIALECT)}",
            )
            return
        plain = not (live.generated or live.identity)
        if plain and _canonical(live.default) == _canonical(wanted):
            return
        if plain and wanted is None and not column.nullable:
            return  # a default that is never used: every INSERT of ours fills the column
        release = ["DROP EXPRESSION"] if live.generated else ["DROP IDENTITY"] if live.identity else []
        set_default = [f"SET DEFAULT {wanted}"] if wanted else [] if release else ["DROP DEFAULT"]
        found = "an expression" if live.generated else "an identity" if live.identity else live.default or "missing"
        yield self._fault(
            f"the default of column {column.name} is {found}, not {wanted or 'NULL'}",
            *(self._alter(column, action) for action in (*release, *set_default)),
        )

    def _sequence_faults(self, column: Column[Any], live: LiveColumn) -> Iterator[Fault]:
        sequence = live.sequence
        if sequence is None or not (live.identity or _NEXTVAL.fullmatch(live.default or "")):
            name = _quote(column.name)
            literal = "'" + self._name.replace("'", "''") + "'"
            yield self._fault(
                f"column {column.name} is not drawn from a sequence",
                self._alter(column, *(["DROP DEFAULT"] if live.default else []), "ADD GENERATED BY DEFAULT AS IDENTITY"),
                f"SELECT setval(pg_get_serial_sequence({literal}, '{column.name}'), greatest(max({name}), 0) + 1, false) "
                f"FROM {self._name}",
            )
            return
        clauses = {
            "CACHE 1": ("numbers are drawn ahead, so they do not follow the order of rows", sequence.cache > 1),
            "AS bigint": (f"it ends where {sequence.type} does", sequence.type != "bigint"),
            "NO CYCLE": ("it begins again at its end", sequence.cycles),
            "INCREMENT BY 1 NO MINVALUE NO MAXVALUE START WITH 1 RESTART": ("it counts down", sequence.increment < 0),
        }
        name = _qualified(sequence.schema, sequence.name)
        for clause, (problem, wrong) in clauses.items():
            if wrong:
                yield self._fault(f"sequence {name} of {column.name}: {problem}", f"ALTER SEQUENCE {name} {clause}")

    def _primary_key_faults(self) -> Iterator[Fault]:
        wanted = tuple(column.name for column in self._table.primary_key.columns)
        found = next((index for index in self._live.indexes if index.primary), None)
        if found and found.columns == wanted:
            return
        constraint = self._table.primary_key.name
        named = f"CONSTRAINT {_DIALECT.identifier_preparer.format_constraint(self._table.primary_key)} " if constraint else ""
        drop = [f"DROP CONSTRAINT {_quote(found.constraint)}"] if found and found.constraint else []
        columns = ", ".join(map(_quote, wanted))
        actions = ", ".join([*drop, f"ADD {named}PRIMARY KEY ({columns})"])
        yield self._fault(f"the primary key is not ({columns})", f"ALTER TABLE {self._name} {actions}")

    def _extra_column_faults(self) -> Iterator[Fault]:
        for column in self._live.columns.values():
            filled = column.default is not None or column.identity or column.generated
            if column.name not in self._table.columns and column.not_null and not filled:
                yield self._fault(
                    f"column {column.name} is none of the outbox's, and is NOT NULL without a default: no row can be added",
                    f"ALTER TABLE {self._name} ALTER COLUMN {_quote(column.name)} DROP NOT NULL",
                )

    def _index_faults(self) -> Iterator[Fault]:
        missing = [index for index in _indexes(self._table) if not any(_fits(index, live) for live in self._live.indexes)]
        own = {live.name: live for live in self._live.indexes}
        taken = taken_names(self._connection, self._live.schema, _index_names(self._table)) - own.keys()
        for index in missing:
            create = _index_clause(index, self._name, taken, concurrently="CONCURRENTLY ")
            wrong = own.get(str(index.name))
            if wrong is None:
                yield self._fault(f"there is no {create.replace('CONCURRENTLY ', '')}", f"CREATE {create}")
                continue
            drop = (
                f"ALTER TABLE {self._name} DROP CONSTRAINT {_quote(wrong.constraint)}"
                if wrong.constraint
                else f"DROP INDEX CONCURRENTLY {_qualified(self._live.schema, wrong.name)}"
            )
            state = "differs" if wrong.plain else "differs or is invalid"
            yield self._fault(f"index {wrong.name} {state}: {wrong.definition}", drop, f"CREATE {create}")


