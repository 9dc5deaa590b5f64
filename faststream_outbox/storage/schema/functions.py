"""The functions for publishing in SQL: their names, what records their version, and those that a database has."""

import re
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Table, text

from faststream_outbox.storage.schema.ddl import quoted
from faststream_outbox.storage.schema.tables import check_identifier, quoted_name

# The version of the functions, raised when what they do changes; a comment on each records it.
FUNCTIONS_VERSION: Final = 2
FUNCTIONS_COMMENT: Final = f"faststream-outbox functions {FUNCTIONS_VERSION}"
# Where tables and functions are created if nobody says where.
USUAL_SCHEMA: Final = "public"
_RECORDED: Final = re.compile(r"faststream-outbox functions (\d+)")

# Types as the catalogs write them. The payload is what differs between functions of one name: `bytea` comes first,
# because the others call it.
_PAYLOADS: Final = ("bytea", "text", "jsonb")
_SCHEDULE: Final = "timestamp with time zone"

# The functions are in the schema of their table; one without a schema is the first of its name on the search_path.
_READ: Final = text("""
SELECT p.proname AS name, pg_catalog.oidvectortypes(p.proargtypes) AS types,
       pg_catalog.obj_description(p.oid, 'pg_proc') AS comment,
       pg_catalog.has_function_privilege(p.oid, 'EXECUTE') AS executable, n.nspname AS schema
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 WHERE p.proname = ANY (CAST(:names AS text[]))
   AND p.pronamespace = (SELECT c.relnamespace FROM pg_catalog.pg_class c
                          WHERE c.oid = pg_catalog.to_regclass(CAST(:table AS text)))
""")


@dataclass(frozen=True, slots=True)
class PublishFunction:
    """One function; `types` are those of its arguments, and `payload` is the one that tells it from its namesakes."""

    name: str
    schema: str
    payload: str
    types: str

    @property
    def quoted(self) -> str:
        """Its name, with the schema of its table."""
        return quoted(self.name, self.schema)

    @property
    def signature(self) -> str:
        """Its name and types, as a GRANT writes them."""
        return f"{self.quoted}({self.types})"


def publish_functions(table: Table, schema: str = USUAL_SCHEMA) -> list[PublishFunction]:
    """Return the functions of an outbox, named after it: `outbox_publish` and `outbox_publish_batch`.

    `schema` is where the table is, if its definition does not say so.
    """
    schema = table.schema or schema
    one = check_identifier("function", f"{table.name}_publish")
    many = check_identifier("function", f"{table.name}_publish_batch")
    return [
        *(PublishFunction(one, schema, each, f"text, {each}, jsonb, text, {_SCHEDULE}, text") for each in _PAYLOADS),
        *(PublishFunction(many, schema, each, f"text, {each}[], jsonb, text[], {_SCHEDULE}") for each in _PAYLOADS),
    ]


@dataclass(frozen=True, slots=True)
class LiveFunctions:
    """What a database has of these functions: those that are missing or older, and those that this role cannot call."""

    schema: str
    outdated: list[str]
    forbidden: list[PublishFunction]


def read_functions(connection: Connection, table: Table) -> LiveFunctions:
    """Compare the functions of an outbox with those of this version. A database that has none of them lacks nothing."""
    names = list({each.name for each in publish_functions(table)})
    asked = {"names": names, "table": quoted_name(table.name, table.schema)}
    found = {
        (row.name, row.types): row for row in connection.execute(_READ, asked) if _RECORDED.search(row.comment or "")
    }
    schema = next((row.schema for row in found.values()), USUAL_SCHEMA)
    outdated, forbidden = list[str](), list[PublishFunction]()
    for each in publish_functions(table, schema) if found else ():
        row = found.get((each.name, each.types))
        if row is None:
            outdated.append(f"{each.signature} is missing")
            continue
        recorded = int(_RECORDED.search(row.comment)[1])  # type: ignore[index]  # found above
        if recorded < FUNCTIONS_VERSION:
            outdated.append(f"{each.signature} is of version {recorded}, not {FUNCTIONS_VERSION}")
        if not row.executable:
            forbidden.append(each)
    return LiveFunctions(schema, outdated, forbidden)
