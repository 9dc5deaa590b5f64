"""Read a live table from the system catalogs only, which needs no privilege on the table."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Table, text

# A table without a schema is the one that an unqualified statement finds: the first of its name on the search_path.
_FIND_TABLE: Final = text("""
SELECT CAST(c.oid AS bigint) AS oid, n.nspname AS schema, c.reloptions AS options,
       pg_catalog.obj_description(c.oid, 'pg_class') AS comment
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = CAST(:name AS text) AND c.relkind IN ('r', 'p')
   AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_catalog.pg_table_is_visible(c.oid)
            ELSE n.nspname = CAST(:schema AS text) END
""")

# The fields of `LiveSequence`, then those of `LiveColumn` after it.
# A column draws from a sequence in two ways: an identity owns its sequence, and a default depends on the one it names.
_READ_COLUMNS: Final = text("""
SELECT s.*, a.attname AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS not_null,
       CAST(a.attidentity AS text) <> '' AS identity, CAST(a.attgenerated AS text) AS generated,
       coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), t.typdefault) AS default
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN LATERAL (
    SELECT n.nspname AS sequence_schema, c.relname AS sequence_name, pg_catalog.format_type(q.seqtypid, NULL),
           q.seqcache, q.seqincrement, q.seqcycle
      FROM pg_catalog.pg_sequence q
      JOIN pg_catalog.pg_class c ON c.oid = q.seqrelid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE q.seqrelid IN (
       SELECT p.objid FROM pg_catalog.pg_depend p
        WHERE p.refclassid = CAST('pg_catalog.pg_class' AS regclass) AND p.refobjid = a.attrelid
          AND p.refobjsubid = a.attnum AND p.classid = CAST('pg_catalog.pg_class' AS regclass) AND p.deptype = 'i'
       UNION ALL
       SELECT p.refobjid FROM pg_catalog.pg_depend p
        WHERE p.classid = CAST('pg_catalog.pg_attrdef' AS regclass) AND p.objid = d.oid
          AND p.refclassid = CAST('pg_catalog.pg_class' AS regclass))
     LIMIT 1) s ON true
 WHERE a.attrelid = CAST(:oid AS oid) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
""")

# `plain`: a valid btree in ascending order, with the operators and collations of its columns; of an expression, the
# default ones.
_READ_INDEXES: Final = text("""
SELECT c.relname AS name, pg_catalog.pg_get_indexdef(i.indexrelid) AS definition,
       i.indisunique AS unique, i.indisprimary AS primary,
       ARRAY(SELECT pg_catalog.pg_get_indexdef(i.indexrelid, k, true)
               FROM generate_series(1, i.indnkeyatts) k ORDER BY k) AS columns,
       pg_catalog.pg_get_expr(i.indpred, i.indrelid) AS predicate,
       (SELECT p.conname FROM pg_catalog.pg_constraint p
         WHERE p.conindid = i.indexrelid AND p.contype IN ('p', 'u', 'x')) AS constraint,
       i.indisvalid AND i.indisready AND m.amname = 'btree' AND i.indnatts = i.indnkeyatts AND NOT EXISTS (
         SELECT FROM unnest(CAST(i.indkey AS int2[]), CAST(i.indclass AS oid[]), CAST(i.indcollation AS oid[]),
                            CAST(i.indoption AS int2[])) AS k(attnum, opclass, coll, option)
           JOIN pg_catalog.pg_opclass o ON o.oid = k.opclass
           LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
          WHERE k.option <> 0 OR NOT o.opcdefault
             OR CASE k.attnum WHEN 0 THEN k.coll NOT IN (0, CAST('pg_catalog."default"' AS regcollation))
                              ELSE a.attcollation IS DISTINCT FROM k.coll END) AS plain
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_am m ON m.oid = c.relam
 WHERE i.indrelid = CAST(:oid AS oid)
 ORDER BY c.relname
""")

# CHECK constraints, each with the columns that it looks at.
_READ_CHECKS: Final = text("""
SELECT p.conname AS name, ARRAY(
         SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid = p.conrelid AND a.attnum = ANY (p.conkey)
       ) AS columns
  FROM pg_catalog.pg_constraint p
 WHERE p.conrelid = CAST(:oid AS oid) AND p.contype = 'c'
 ORDER BY p.conname
""")

_SCHEMA_EXISTS: Final = text(
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = CAST(:schema AS text))"
)

_TAKEN_NAMES: Final = text("""
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = coalesce(CAST(:schema AS text), current_schema()) AND c.relname = ANY (CAST(:names AS text[]))
""")


@dataclass(frozen=True, slots=True)
class LiveSequence:
    """The sequence that a column's values are drawn from."""

    schema: str
    name: str
    type: str
    cache: int
    increment: int
    cycles: bool


@dataclass(frozen=True, slots=True)
class LiveColumn:
    """A live column; `generated` is `''`, `'s'` (stored) or `'v'` (virtual)."""

    sequence: LiveSequence | None
    name: str
    type: str
    not_null: bool
    identity: bool
    generated: str
    default: str | None


@dataclass(frozen=True, slots=True)
class LiveIndex:
    """A live index; `constraint` is the one that owns it, if any."""

    name: str
    definition: str
    unique: bool
    primary: bool
    columns: list[str]
    predicate: str | None
    constraint: str | None
    plain: bool


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A live table, with the schema in which it was found."""

    schema: str
    columns: dict[str, LiveColumn]
    indexes: list[LiveIndex]
    checks: dict[str, list[str]]
    options: dict[str, str]
    comment: str | None


def read_table(connection: Connection, table: Table) -> LiveTable | None:
    """Return `table` as it is in the database; `None` if it does not exist."""
    found = connection.execute(_FIND_TABLE, {"name": table.name, "schema": table.schema}).one_or_none()
    if found is None:
        return None
    columns = {
        row.name: LiveColumn(None if row.sequence_name is None else LiveSequence(*row[:6]), *row[6:])
        for row in connection.execute(_READ_COLUMNS, {"oid": found.oid})
    }
    indexes = [LiveIndex(**row) for row in connection.execute(_READ_INDEXES, {"oid": found.oid}).mappings()]
    checks = {row.name: row.columns for row in connection.execute(_READ_CHECKS, {"oid": found.oid})}
    options = dict(option.split("=", 1) for option in found.options or ())
    return LiveTable(found.schema, columns, indexes, checks, options, found.comment)


def schema_exists(connection: Connection, schema: str) -> bool:
    """Return whether a schema of this name exists."""
    return bool(connection.execute(_SCHEMA_EXISTS, {"schema": schema}).scalar_one())


def taken_names(connection: Connection, schema: str | None, names: Collection[str]) -> set[str]:
    """Return those of `names` that relations of the schema have; without a schema, of the one for new tables."""
    return set(connection.execute(_TAKEN_NAMES, {"schema": schema, "names": list(names)}).scalars())
