"""Compare a defined table with the live one: every fault, with the DDL that mends it.

Alembic says which columns differ in type. What it does not compare, or compares by running expressions on the server
(defaults, sequences, the primary key, indexes), is read from the catalogs.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Connection, Index, MetaData, String, Table, text
from sqlalchemy.types import TEXT, VARCHAR, NullType, TypeEngine

from faststream_outbox.storage.schema.catalog import (
    LiveColumn,
    LiveIndex,
    LiveTable,
    read_table,
    taken_names,
)
from faststream_outbox.storage.schema.ddl import (
    Fault,
    TableDdl,
    absent_table,
    default_of,
    index_body,
    index_columns,
    index_names,
    predicate_of,
    quoted,
    type_name,
)
from faststream_outbox.storage.schema.row_security import READ_HIDDEN, RowSecurityError
from faststream_outbox.storage.schema.tables import (
    FOR_SEARCHES,
    SCHEMA_VERSION,
    STORAGE_OPTIONS,
    quoted_name,
    recorded_version,
)

# How Postgres writes defaults that mean the same as ours.
_SAME_DEFAULT: Final = {"CURRENT_TIMESTAMP": "now()", "transaction_timestamp()": "now()"}
_CONSTANT: Final = re.compile(r"\(?'?(-?\w+)'?\)?(?:::[\w ]+)?")
_NULL: Final = re.compile(r"NULL(?:::.*)?")
_NEXTVAL: Final = re.compile(r"nextval\('.+'::regclass\)")

_LEASE_COLUMNS: Final = {"acquired_at", "acquired_token", "lease_expires_at"}
_BOOLEANS: Final = {"true": "1", "on": "1", "yes": "1", "false": "0", "off": "0", "no": "0"}
# What Postgres uses where a table sets no option.
_UNSET_OPTIONS: Final = {"fillfactor": "100", "autovacuum_enabled": "true"}


@dataclass(frozen=True, slots=True)
class Findings:
    """All faults: those that make statements fail, those of autovacuum, and a fillfactor without room for claims.

    `recorded` has the schema version of each live table, and `version` the faults of tables that record none or an
    older one. A newer one is no fault: processes of both versions work on it while an upgrade rolls. `searches` has the
    missing indexes without which nothing fails, and operators' searches are slow.
    """

    faults: list[Fault] = field(default_factory=list)
    autovacuum: list[Fault] = field(default_factory=list)
    fillfactor: list[Fault] = field(default_factory=list)
    searches: list[Fault] = field(default_factory=list)
    version: list[Fault] = field(default_factory=list)
    recorded: list[int | None] = field(default_factory=list)

    @property
    def newer(self) -> bool:
        """Whether a table was migrated for a newer version of the package."""
        return any(version is not None and version > SCHEMA_VERSION for version in self.recorded)


def compare_tables(connection: Connection, tables: Iterable[Table]) -> Findings:
    """Compare each table with the live one."""
    findings = Findings()
    for table in tables:
        live = read_table(connection, table)
        if live is None:
            findings.faults.append(absent_table(connection, table))
            continue
        comparison = _TableComparison(connection, table, live)
        findings.faults.extend(comparison.faults())
        findings.autovacuum.extend(comparison.storage_faults("autovacuum"))
        findings.fillfactor.extend(comparison.storage_faults("fillfactor"))
        findings.searches.extend(comparison.index_faults(for_searches=True))
        findings.version.extend(comparison.version_faults())
        findings.recorded.append(recorded_version(live.comment))
    return findings


class _TableComparison:
    """A defined table and the live one."""

    def __init__(self, connection: Connection, table: Table, live: LiveTable) -> None:
        self._connection = connection
        self._table = table
        self._live = live
        self._ddl = TableDdl(table, live)

    def faults(self) -> Iterator[Fault]:
        """Yield what the table lacks, in an order in which the DDL can run."""
        wrong_types = _differing_types(self._connection, self._table, self._live)
        columns = [(column, live) for column in self._table.columns if (live := self._live.columns.get(column.name))]
        absent = [column for column in self._table.columns if column.name not in self._live.columns]
        yield from map(self._absent_column, absent)
        yield from (self._wrong_type(column, live) for column, live in columns if column.name in wrong_types)
        yield from self._primary_key_faults()
        for column, live in columns:
            yield from self._sequence_faults(column, live) if column.identity else self._default_faults(column, live)
        yield from (self._wrong_nullability(column) for column, live in columns if column.nullable == live.not_null)
        yield from self._extra_column_faults()
        yield from self._check_faults()
        yield from self.index_faults(for_searches=False)
        yield from self._row_security_faults()

    def storage_faults(self, prefix: str) -> Iterator[Fault]:
        """Yield one fault for all storage options of this prefix that differ from the defined ones."""
        wanted = {name: str(value) for name, value in self._table.info.get(STORAGE_OPTIONS, {}).items()}
        if wanted:
            wanted["autovacuum_enabled"] = "true"
        found = {name: self._live.options.get(name, _UNSET_OPTIONS.get(name)) for name in wanted}
        differing = {
            name: value
            for name, value in wanted.items()
            if name.startswith(prefix) and _canonical_option(value) != _canonical_option(found[name])
        }
        if differing:
            problem = ", ".join(f"{name} is {found[name] or 'not set'}" for name in differing)
            yield self._fault(problem, self._ddl.set_options(differing))

    def version_faults(self) -> Iterator[Fault]:
        """Yield a fault if the table records no schema version, or an older one than it is defined with."""
        if recorded_version(self._table.comment) is None:
            return  # the user gave the table another comment
        found = recorded_version(self._live.comment)
        if found is None or found < SCHEMA_VERSION:
            problem = "no schema version is recorded" if found is None else f"schema {found} is recorded"
            yield self._fault(f"{problem}, not schema {SCHEMA_VERSION}", self._ddl.record_version())

    def _fault(self, problem: str, *ddl: str) -> Fault:
        return Fault(f"{self._ddl.name}: {problem}", ddl)

    def _absent_column(self, column: Column[Any]) -> Fault:
        filled = column.nullable or column.server_default is not None
        hint = "" if filled else " (if there are rows, they need a value first)"
        return self._fault(f"column {column.name} is missing{hint}", self._ddl.add_column(column))

    def _wrong_type(self, column: Column[Any], live: LiveColumn) -> Fault:
        problem = f"column {column.name} is {live.type}, not {type_name(column.type)}"
        return self._fault(problem, self._ddl.change_type(column, live))

    def _wrong_nullability(self, column: Column[Any]) -> Fault:
        if column.nullable:
            drop = self._ddl.alter_column(column.name, "DROP NOT NULL")
            return self._fault(f"column {column.name} is NOT NULL, and must take NULL", drop)
        return self._fault(f"column {column.name} takes NULL, and must not", *self._ddl.set_not_null(column))

    def _default_faults(self, column: Column[Any], live: LiveColumn) -> Iterator[Fault]:
        wanted = default_of(column)
        set_default = self._ddl.alter_column(column.name, f"SET DEFAULT {wanted}" if wanted else "DROP DEFAULT")
        if live.generated == "v":
            yield self._fault(f"column {column.name} is generated", self._ddl.recreate_column(column))
        elif live.generated:
            release = self._ddl.alter_column(column.name, "DROP EXPRESSION")
            yield self._fault(f"column {column.name} is generated", release, *([set_default] if wanted else []))
        elif wanted is None and not column.nullable:
            pass  # a default is never used: each INSERT of ours fills the column
        elif _canonical_default(live.default) != _canonical_default(wanted):
            problem = f"the default of column {column.name} is {live.default or 'missing'}, not {wanted or 'NULL'}"
            yield self._fault(problem, set_default)

    def _sequence_faults(self, column: Column[Any], live: LiveColumn) -> Iterator[Fault]:
        sequence = live.sequence
        if sequence is None or not (live.identity or _NEXTVAL.fullmatch(live.default or "")):
            problem = f"column {column.name} is not drawn from a sequence"
            yield self._fault(problem, *self._ddl.add_identity(column, live))
            return
        name = quoted(sequence.name, sequence.schema)
        for wrong, problem, mending in (
            (sequence.cache > 1, "hands out numbers ahead, so that they break the order of rows", "CACHE 1"),
            (sequence.type != "bigint", f"ends where {sequence.type} does", "AS bigint"),
            (sequence.cycles, "starts again at its end", "NO CYCLE"),
        ):
            if wrong:
                yield self._fault(f"sequence {name} {problem}", f"ALTER SEQUENCE {name} {mending}")
        if sequence.increment < 0:
            yield self._fault(f"sequence {name} counts down", *self._ddl.count_upwards(column, name))

    def _primary_key_faults(self) -> Iterator[Fault]:
        wanted = [column.name for column in self._table.primary_key.columns]
        found = next((index for index in self._live.indexes if index.primary), None)
        if found is None or found.columns != wanted:
            problem = f"the primary key is {found.definition if found else 'missing'}, not on {', '.join(wanted)}"
            yield self._fault(problem, self._ddl.set_primary_key(found))

    def _extra_column_faults(self) -> Iterator[Fault]:
        for live in self._live.columns.values():
            filled = live.default is not None or live.identity or live.generated
            if live.name not in self._table.columns and live.not_null and not filled:
                problem = f"column {live.name} is not ours and NOT NULL without a default, so no row can be added"
                yield self._fault(problem, self._ddl.alter_column(live.name, "DROP NOT NULL"))

    def _check_faults(self) -> Iterator[Fault]:
        # The original package has such a CHECK, and Alembic compares none. Rows of a dead process may have a token
        # without a time, and rows behind the head of a key a time without a token.
        for name, columns in self._live.checks.items():
            if _LEASE_COLUMNS.intersection(columns):
                problem = f"the CHECK {name} is not ours, and leases violate it"
                yield self._fault(problem, self._ddl.drop_constraint(name))

    def index_faults(self, *, for_searches: bool) -> Iterator[Fault]:
        """Yield the indexes that are missing, either those that statements need or those for operators' searches."""
        own = {live.name: live for live in self._live.indexes}
        taken = taken_names(self._connection, self._live.schema, index_names(self._table)) - own.keys()
        for index in sorted(self._table.indexes, key=lambda index: str(index.name)):
            needed = index.info.get(FOR_SEARCHES, False) == for_searches
            if not needed or any(_fits(index, live) for live in self._live.indexes):
                continue
            create = self._ddl.create_index(index, taken)
            wanted = f"{'unique ' if index.unique else ''}index {index_body(index)}"
            namesake = own.get(str(index.name))
            if namesake:
                problem = f"{wanted} is missing; the one of its name is another, or invalid: {namesake.definition}"
                yield self._fault(problem, self._ddl.drop_index(namesake), create)
            else:
                yield self._fault(f"{wanted} is missing", create)

    def _row_security_faults(self) -> Iterator[Fault]:
        tables = [quoted_name(self._table.name, self._live.schema)]
        for found in self._connection.execute(text(READ_HIDDEN), {"tables": tables}):
            hidden = RowSecurityError(*found)
            yield self._fault(hidden.problem, *hidden.policies())


def _differing_types(connection: Connection, table: Table, live: LiveTable) -> set[str]:
    """Return the names of columns that have another type."""
    # The copy holds only what is asked. With defaults in it Alembic would compare identities and sequences too, and
    # fails on some pairs of them.
    copy = MetaData()
    Table(table.name, copy, *(Column(column.name, column.type) for column in table.columns), schema=live.schema)
    # Alembic calls the connection's default schema None.
    schema = None if live.schema == connection.dialect.default_schema_name else live.schema
    wrong = set[str]()

    def include_name(name: str | None, type_: str, _parents: object) -> bool:
        return name == {"schema": schema, "table": table.name}.get(type_, name)

    def include_object(_item: object, name: str, type_: str, reflected: bool, found: object) -> bool:
        if type_ == "column" and isinstance(found, Column) and isinstance(found.type, NullType):
            wrong.add(name)  # a type unknown to SQLAlchemy, which Alembic passes over
        return not reflected  # columns that only the database has are the user's: Alembic need not log them

    options = {
        "include_schemas": True,
        "include_name": include_name,
        "include_object": include_object,
        "compare_type": _differ,
        "compare_server_default": False,
    }
    for difference in compare_metadata(MigrationContext.configure(connection, opts=options), copy):
        for change in difference if isinstance(difference, list) else [difference]:
            if change[0] == "modify_type":
                wrong.add(change[3])
    return wrong


def _differ(_context: object, _live: object, _column: object, found: TypeEngine[Any], wanted: TypeEngine[Any]) -> bool:
    """Return whether two types differ; Alembic mistakes an array for its element and ignores a precision."""
    if isinstance(wanted, String) and isinstance(found, String) and type(found) in {VARCHAR, TEXT}:
        # A wider text column is fine.
        return found.length is not None and (wanted.length is None or found.length < wanted.length)
    # A timestamp without a precision has microseconds. With a coarser one `now()` may round into the future.
    return type_name(found).replace("TIMESTAMP(6)", "TIMESTAMP") != type_name(wanted)


def _canonical_default(expression: str | None) -> str | None:
    if expression is None or _NULL.fullmatch(expression):
        return None
    constant = _CONSTANT.fullmatch(expression)
    bare = constant[1] if constant else expression
    return _SAME_DEFAULT.get(bare, bare)


def _canonical_option(value: str | None) -> str | float:
    text = _BOOLEANS.get(str(value).lower(), str(value))
    try:
        return float(text)
    except ValueError:
        return text


def _fits(index: Index, live: LiveIndex) -> bool:
    predicate = predicate_of(index)
    return (
        live.plain
        and live.unique == bool(index.unique)
        and live.columns == index_columns(index)
        and live.predicate == (f"({predicate})" if predicate else None)
    )
