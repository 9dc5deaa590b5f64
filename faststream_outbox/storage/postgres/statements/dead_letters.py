"""The statements by which operators read dead letters: parts of an index, the newest first."""

from typing import Final, Literal

from sqlalchemy import Table

from faststream_outbox.storage.operating.exception_types import SQL_TYPE, sql_beginning
from faststream_outbox.storage.operating.filters import COUNT_CAP, DeadLetterFilter
from faststream_outbox.storage.postgres.statements.admin import LETTER
from faststream_outbox.storage.postgres.statements.conditions import condition, names
from faststream_outbox.storage.postgres.statements.statement import SIZE, Statement, epoch
from faststream_outbox.storage.schema.tables import quoted_name

LetterLeg = Literal["id", "failed", "correlation"]

# As in the index: a btree holds no text of any length. A filter compares the whole text.
_PREFIX: Final = "substr(d.headers ->> 'correlation_id', 1, 255)"
_LAST_ID: Final = 2**63 - 1
_TIMES: Final = {
    "failed_after": " AND d.failed_at >= to_timestamp(:failed_after::float8)",
    "failed_before": " AND d.failed_at < to_timestamp(:failed_before::float8)",
}


class DeadLetterStatements:
    """The statements for one dead-letter table; those of a search are made when they are first needed."""

    def __init__(self, dlq: Table) -> None:
        self._dlq = quoted_name(dlq.name, dlq.schema)
        self._parts: dict[tuple[LetterLeg, tuple[str, ...], int], Statement] = {}
        self.one = Statement(f"SELECT {LETTER} FROM {self._dlq} d WHERE d.id = :id::bigint")
        self.read = Statement(f"SELECT {LETTER} FROM {self._dlq} d WHERE d.id = ANY (:ids::bigint[])")
        size = SIZE.replace("o.", "d.")
        self.sizes = Statement(f"SELECT d.id, {size} FROM {self._dlq} d WHERE d.id = ANY (:ids::bigint[])")
        # Tables of older versions have no index of correlation ids.
        self.has_correlation_index = Statement(f"""SELECT EXISTS (
  SELECT FROM pg_index i WHERE i.indrelid = '{self._dlq.replace("'", "''")}'::regclass AND i.indisvalid
     AND pg_get_indexdef(i.indexrelid) LIKE '%substr(%''correlation_id''%')""")
        self.groups = self._groups()

    def part(self, leg: LetterLeg, where: DeadLetterFilter, size: int) -> Statement:
        """Return the statement that examines `size` rows of a leg for those that match a filter."""
        known = (leg, names(where), size)
        if known not in self._parts:
            self._parts[known] = self._part(leg, where, size)
        return self._parts[known]

    def _part(self, leg: LetterLeg, where: DeadLetterFilter, size: int) -> Statement:
        source, order = self._range(leg, where)
        return Statement(f"""SELECT s.id, to_jsonb(s.failed_at) #>> '{{}}', s.wanted, s.n FROM (
  SELECT d.*, row_number() OVER () AS n, count(*) OVER () AS seen FROM (
    SELECT d.id, d.failed_at, ({condition(where, "")}) IS TRUE AS wanted
      FROM {source} ORDER BY {order} LIMIT {size}) d) s
 WHERE s.wanted OR s.n = s.seen ORDER BY s.n""")

    def _range(self, leg: LetterLeg, where: DeadLetterFilter) -> tuple[str, str]:
        """Return the range of a leg, and its order."""
        before = "d.id < :after_id::bigint"
        match leg:
            case "id":
                return f"{self._dlq} d WHERE {before}", "d.id DESC"
            case "failed":
                # The index has no id: rows that failed in one statement, at most some hundred, are sorted by id.
                times = "".join(_TIMES.get(name, "") for name in names(where))
                source = f"""{self._dlq} d WHERE d.queue = :queue::text{times}
       AND (d.failed_at, d.id) < (:after_value::text::timestamptz, :after_id::bigint)"""
                return source, "d.failed_at DESC, d.id DESC"
            case "correlation":
                # Two comparisons, not an equality: the planner would drop the order, and might walk the primary key.
                bound = "substr(:correlation_id::text, 1, 255)"
                source = f"""{self._dlq} d WHERE (d.headers ->> 'correlation_id') IS NOT NULL
       AND ({_PREFIX}, d.id) < ({bound}, :after_id::bigint) AND ({_PREFIX}, d.id) > ({bound}, -{_LAST_ID})"""
                return source, f"{_PREFIX} DESC, d.id DESC"

    def _groups(self) -> Statement:
        first, following = (
            f"(SELECT d.queue FROM {self._dlq} d WHERE d.queue {beyond} ORDER BY d.queue LIMIT 1)::text"
            for beyond in (">= ''", "> q.queue")
        )
        # One more than is counted, to know whether there are more; the oldest of them is left out. Letters with the
        # same beginning are grouped first.
        return Statement(f"""WITH RECURSIVE queues(queue) AS (
  SELECT {first}
  UNION ALL
  SELECT {following} FROM queues q WHERE q.queue IS NOT NULL)
SELECT q.queue, g.failure_reason, g.type, g.number, g.more, {epoch("g.first_at")}, {epoch("g.last_at")}, g.example
  FROM queues q CROSS JOIN LATERAL (
    SELECT n.failure_reason, {SQL_TYPE} AS type, sum(n.number)::bigint AS number, bool_or(n.more) AS more,
           min(n.first_at) AS first_at, max(n.last_at) AS last_at, max(n.example) AS example
      FROM (SELECT r.failure_reason, r.name, r.traced, count(*) AS number,
                   bool_or(r.seen > {COUNT_CAP}) AS more, min(r.failed_at) AS first_at, max(r.failed_at) AS last_at,
                   max(r.id) AS example
              FROM (SELECT r.*, row_number() OVER () AS n, count(*) OVER () AS seen FROM (
                      SELECT d.id, d.failed_at, d.failure_reason, b.*
                        FROM (SELECT d.id, d.failed_at, d.failure_reason, d.last_exception FROM {self._dlq} d
                               WHERE d.queue = q.queue ORDER BY d.failed_at DESC LIMIT {COUNT_CAP + 1}) d
                       CROSS JOIN LATERAL ({sql_beginning("d.last_exception")} OFFSET 0) b) r) r
             WHERE r.n <= {COUNT_CAP} GROUP BY r.failure_reason, r.name, r.traced) n
     GROUP BY 1, 2) g
 WHERE q.queue IS NOT NULL ORDER BY g.number DESC, q.queue, g.failure_reason, g.type""")
