"""The statements that mend a live table, as text for a person to run."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Connection, Index, LargeBinary, String, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateColumn, CreateTable, DefaultClause
from sqlalchemy.types import TypeEngine

from faststream_outbox.storage.schema.catalog import LiveColumn, LiveIndex, LiveTable, schema_exists, taken_names
from faststream_outbox.storage.schema.tables import record_version

# A paramstyle without percent signs: with the default one each "%" of a name would be doubled, for a driver to halve.
_DIALECT: Final = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]  # SQLAlchemy's own gap


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and the statements that mend it."""

    problem: str
    ddl: tuple[str, ...]

    def __str__(self) -> str:
        # A comment and statements, to be pasted as they are; a line break in a name must not end the comment.
        return "\n".join([f"-- {' '.join(self.problem.split())}", *(f"{statement};" for statement in self.ddl)])


def quoted(name: str, schema: str | None = None) -> str:
    """Return a name quoted where it has to be, with its schema if it has one."""
    quote = _DIALECT.identifier_preparer.quote
    return f"{quote(schema)}.{quote(name)}" if schema else str(quote(name))


def default_of(column: Column[Any]) -> str | None:
    """Return a column's server default as SQL."""
    default = column.server_default
    return str(default.arg) if isinstance(default, DefaultClause) else None


def type_name(type_: TypeEngine[Any]) -> str:
    """Return a type as SQL."""
    return type_.compile(dialect=_DIALECT)


def predicate_of(index: Index) -> str | None:
    """Return the condition of a partial index as SQL."""
    where = index.dialect_options["postgresql"]["where"]
    return None if where is None else str(where.compile(dialect=_DIALECT, compile_kwargs={"literal_binds": True}))


def index_columns(index: Index) -> list[str]:
    """Return the columns and expressions of an index as Postgres shows them."""
    return [quoted(each.name) if isinstance(each, Column) else str(each) for each in index.expressions]


def index_names(table: Table) -> list[str]:
    """Return the names of the indexes of a defined table."""
    return [str(index.name) for index in table.indexes]


def index_body(index: Index) -> str:
    """Return the columns and the condition of an index as SQL."""
    predicate = predicate_of(index)
    columns = ", ".join(index_columns(index))
    return f"({columns})" + (f" WHERE {predicate}" if predicate else "")


def absent_table(connection: Connection, table: Table) -> Fault:
    """Return the fault of a table that does not exist, with the statements that create it."""
    with_schema = bool(table.schema) and not schema_exists(connection, str(table.schema))
    names = taken_names(connection, table.schema, index_names(table))
    ddl = create_table(table, with_schema=with_schema, taken_names=names)
    return Fault(f"table {quoted(table.name, table.schema)} is missing", tuple(ddl))


def create_table(table: Table, *, with_schema: bool, taken_names: Collection[str]) -> Iterator[str]:
    """Yield the statements that create a table with its indexes, and its schema if `with_schema`."""
    if with_schema and table.schema:
        yield f"CREATE SCHEMA {quoted(table.schema)}"
    yield str(CreateTable(table).compile(dialect=_DIALECT)).strip()
    name = quoted(table.name, table.schema)
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        yield create_index_on(index, name, taken_names)
    if table.comment:
        yield comment_on(name, table.comment)


class TableDdl:
    """The statements for one live table, named with the schema where it was found."""

    def __init__(self, table: Table, live: LiveTable) -> None:
        self._table = table
        self._schema = live.schema
        self._comment = live.comment
        self.name: Final = quoted(table.name, live.schema)

    def add_column(self, column: Column[Any]) -> str:
        """Add a column that is missing."""
        return f"ALTER TABLE {self.name} ADD COLUMN {CreateColumn(column).compile(dialect=_DIALECT)}"

    def recreate_column(self, column: Column[Any]) -> str:
        """Replace a column that stores no values."""
        specification = CreateColumn(column).compile(dialect=_DIALECT)
        return f"ALTER TABLE {self.name} DROP COLUMN {quoted(column.name)}, ADD COLUMN {specification}"

    def change_type(self, column: Column[Any], live: LiveColumn) -> str:
        """Change a column's type and convert its values."""
        name, type_ = quoted(column.name), type_name(column.type)
        # By way of text, because every type has a cast to it and from it.
        match column.type:
            case LargeBinary():  # here a cast would read backslashes as escapes
                using = f"convert_to({name}::text, 'UTF8')"
            case String():  # here a cast would silently cut what is too long
                using = f"{name}::text"
            case _:
                using = f"{name}::text::{type_}"
        change = f"TYPE {type_} USING {using}"
        if live.default is None or live.generated or live.sequence:
            return self.alter_column(column.name, change)
        # The old default may have no cast to the new type.
        default = default_of(column)
        return self.alter_column(column.name, "DROP DEFAULT", change, *([f"SET DEFAULT {default}"] if default else []))

    def alter_column(self, column: str, *actions: str) -> str:
        """Alter one column in one statement."""
        return f"ALTER TABLE {self.name} " + ", ".join(f"ALTER COLUMN {quoted(column)} {action}" for action in actions)

    def set_not_null(self, column: Column[Any]) -> Iterator[str]:
        """Forbid NULL, after rows with NULL were given the default."""
        if default_of(column):
            name = quoted(column.name)
            yield f"UPDATE {self.name} SET {name} = DEFAULT WHERE {name} IS NULL"  # noqa: S608 - shown, not run
        yield self.alter_column(column.name, "SET NOT NULL")

    def add_identity(self, column: Column[Any], live: LiveColumn) -> Iterator[str]:
        """Draw a column from a sequence that continues after the ids of existing rows."""
        drop_default = ["DROP DEFAULT"] if live.default else []
        yield self.alter_column(column.name, *drop_default, "ADD GENERATED BY DEFAULT AS IDENTITY")
        yield self._go_on(f"pg_get_serial_sequence({_literal(self.name)}, {_literal(column.name)})", column)

    def count_upwards(self, column: Column[Any], sequence: str) -> Iterator[str]:
        """Make a sequence that counts down count up."""
        yield f"ALTER SEQUENCE {sequence} INCREMENT 1 NO MINVALUE NO MAXVALUE START 1 RESTART"
        yield self._go_on(_literal(sequence), column)

    def set_primary_key(self, found: LiveIndex | None) -> str:
        """Replace the primary key that was found."""
        key = self._table.primary_key
        drop = f"DROP CONSTRAINT {quoted(found.constraint)}, " if found and found.constraint else ""
        named = f"CONSTRAINT {_DIALECT.identifier_preparer.format_constraint(key)} " if key.name else ""
        columns = ", ".join(quoted(column.name) for column in key.columns)
        return f"ALTER TABLE {self.name} {drop}ADD {named}PRIMARY KEY ({columns})"

    def create_index(self, index: Index, taken_names: Collection[str]) -> str:
        """Create an index while the table is in use."""
        return create_index_on(index, self.name, taken_names, concurrently=True)

    def drop_index(self, index: LiveIndex) -> str:
        """Drop an index, with the constraint that owns it."""
        if index.constraint:
            return self.drop_constraint(index.constraint)
        return f"DROP INDEX CONCURRENTLY {quoted(index.name, self._schema)}"

    def drop_constraint(self, name: str) -> str:
        """Return the statement that drops a constraint."""
        return f"ALTER TABLE {self.name} DROP CONSTRAINT {quoted(name)}"

    def set_options(self, options: dict[str, str]) -> str:
        """Set storage options."""
        settings = ", ".join(f"{name} = {value}" for name, value in options.items())
        return f"ALTER TABLE {self.name} SET ({settings})"

    def record_version(self) -> str:
        """Record our schema version in the table's comment."""
        return comment_on(self.name, record_version(self._comment))

    def _go_on(self, sequence: str, column: Column[Any]) -> str:
        highest = f"greatest(max({quoted(column.name)}), 0)"
        return f"SELECT setval({sequence}, {highest} + 1, false) FROM {self.name}"  # noqa: S608 - same


def create_index_on(index: Index, table: str, taken_names: Collection[str], *, concurrently: bool = False) -> str:
    """Return the statement that creates an index on a table."""
    # If another relation has the name, Postgres chooses one: validation compares what an index does, not its name.
    name = "" if index.name in taken_names else f"{quoted(str(index.name))} "
    kind = "UNIQUE INDEX" if index.unique else "INDEX"
    return f"CREATE {kind} {'CONCURRENTLY ' if concurrently else ''}{name}ON {table} {index_body(index)}"


def comment_on(table: str, comment: str) -> str:
    """Return the statement that sets the comment of a table."""
    return f"COMMENT ON TABLE {table} IS {_literal(comment)}"


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
