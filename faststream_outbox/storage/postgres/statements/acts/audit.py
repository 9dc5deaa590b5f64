"""The statements of the audit table: one row for each act, in the transaction of the act."""

from functools import cache
from typing import Final

from faststream_outbox.storage.postgres.statements.statement import Statement, epoch

# How many entries one statement compares with a filter at most.
AUDIT_EXAMINED: Final = 10_000

_CONDITIONS: Final = {
    "by": "a.by = :by::text",
    "action": "a.action = :action::text",
    "queue": "(a.target ->> 'queue' = :queue::text OR a.target #>> '{where,queue}' = :queue::text)",
    "after": "a.at >= to_timestamp(:after::float8)",
    "before": "a.at < to_timestamp(:before::float8)",
}


class AuditStatements:
    """The statements for one audit table, given by its quoted name."""

    def __init__(self, table: str) -> None:
        self._table = table
        self.add = Statement(f"""INSERT INTO {table} ("by", action, reason, target, count)
VALUES (:by::text, :action::text, :reason::text, :target::text::jsonb, :count::bigint) RETURNING id""")
        self.raise_count = Statement(
            f"UPDATE {table} a SET count = a.count + :count::bigint WHERE a.id = :id::bigint RETURNING a.id"
        )

    @cache  # noqa: B019 - the statements live as long as the process
    def read(self, names: tuple[str, ...]) -> Statement:
        """Return the statement that reads entries from the newest on, by the names that a filter gives."""
        # One action has an index of its own.
        bound = f"{_CONDITIONS['action']} AND " if "action" in names else ""
        wanted = " AND ".join(_CONDITIONS[name] for name in names) or "true"
        return Statement(f"""WITH seen AS MATERIALIZED (
  SELECT a.*, {wanted} AS wanted FROM {self._table} a WHERE {bound}a.id < :before_id::bigint
   ORDER BY a.id DESC LIMIT {AUDIT_EXAMINED}),
found AS MATERIALIZED (SELECT * FROM seen s WHERE s.wanted LIMIT :limit::bigint)
SELECT CASE WHEN (SELECT count(*) FROM found) >= :limit::bigint THEN (SELECT min(f.id) FROM found f)
            WHEN (SELECT count(*) FROM seen) >= {AUDIT_EXAMINED} THEN (SELECT min(s.id) FROM seen s) END,
       a.id, {epoch("a.at")}, a.by, a.action, a.reason, a.target::text, a.count
  FROM (SELECT) one LEFT JOIN found a ON true ORDER BY a.id DESC""")


@cache
def audit_statements(quoted_table: str) -> AuditStatements:
    """Return the statements for an audit table."""
    return AuditStatements(quoted_table)
