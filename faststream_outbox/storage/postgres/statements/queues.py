"""The statements that count the rows of queues, and that walk over their keys: bounded, however large the table is.

Of each queue three parts are read: rows without a key that are due, those that are due later, and rows with a key. Each
part ends after `cap` rows. Sizes stand in the text, because Postgres plans for a tenth of the table if LIMIT is a
parameter.
"""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.operating.reads import MOST_KEYS_VISITED, MOST_WAITING
from faststream_outbox.storage.ordering.key_cursor import BEGINNING, LAST_ID
from faststream_outbox.storage.ordering.states import BLOCKED, STATE
from faststream_outbox.storage.postgres.statements.search import next_queue
from faststream_outbox.storage.postgres.statements.statement import ROW, Statement, epoch
from faststream_outbox.storage.schema.tables import quoted_name

# A head without its payload, which these statements do not show.
_HEAD: Final = ROW.replace("o.payload", "''::bytea")
# How many of the first rows of the table are looked at for the oldest ones of each queue.
_FRONT: Final = 1_000
# How many heads of a queue are counted if it has more rows with keys than are read.
_COUNTED_HEADS: Final = 1_000
_BLOCKED: Final = ", ".join(f"'{state}'" for state in BLOCKED)


class QueueStatements:
    """The statements for one outbox and, if there is one, its dead-letter table."""

    def __init__(self, outbox: Table, dlq: Table | None = None) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._dlq = None if dlq is None else quoted_name(dlq.name, dlq.schema)
        self._counts: dict[tuple[int, bool], Statement] = {}
        self.keys = self._keys()
        name = self._outbox.replace("'", "''")
        self.traffic = Statement(
            f"SELECT t.n_tup_ins, t.n_tup_del FROM pg_stat_all_tables t WHERE t.relid = '{name}'::regclass"
        )

    def counts(self, cap: int) -> Statement:
        """Return the statement that counts up to `cap` rows of each part of every queue."""
        return self._counting(cap, one=False)

    def counts_of_one(self, cap: int) -> Statement:
        """Return the statement that counts the same of the queue `:queue` only; no record if it has no rows."""
        return self._counting(cap, one=True)

    def _counting(self, cap: int, *, one: bool) -> Statement:
        if (cap, one) not in self._counts:
            self._counts[cap, one] = self._count(cap, one=one)
        return self._counts[cap, one]

    def _first_name(self, beyond: str) -> str:
        name = next_queue(self._outbox, beyond)
        if self._dlq is None:
            return name
        probe = f"(SELECT d.queue FROM {self._dlq} d WHERE d.queue {beyond} ORDER BY d.queue LIMIT 1)"
        return f"least({name}, {probe})::text"

    def _names(self, *, one: bool) -> str:
        if one:
            # An equality would let the planner drop the order, and walk another index.
            first = self._first_name(">= :queue::text")
            return f"""queues(queue) AS MATERIALIZED (
  SELECT f.queue FROM (SELECT {first} AS queue OFFSET 0) f WHERE f.queue = :queue::text)"""
        return f"""queues(queue) AS (
  SELECT {self._first_name(">= ''")}
  UNION ALL
  SELECT {self._first_name("> q.queue")} FROM queues q WHERE q.queue IS NOT NULL)"""

    def _without_key(self, part: int, due: str, cap: int) -> str:
        return f"""SELECT {part} AS part, o.created_at, o.next_attempt_at, {STATE} AS state, NULL AS head_state,
             false AS is_head, o.attempts_count
        FROM {self._outbox} o WHERE o.entity_key IS NULL AND o.queue = q.queue AND o.next_attempt_at {due} now()
       ORDER BY o.next_attempt_at, o.id LIMIT {cap + 1}"""

    def _count(self, cap: int, *, one: bool) -> Statement:
        dead = "SELECT 0 AS number"
        if self._dlq is not None:
            dead = f"""SELECT count(*) AS number FROM (
    SELECT FROM {self._dlq} d WHERE d.queue = q.queue ORDER BY d.failed_at LIMIT {cap + 1}) d"""
        front = f"SELECT * FROM {self._outbox} o WHERE o.id >= '{BEGINNING[1]}'::bigint ORDER BY o.id LIMIT {_FRONT}"
        of_one = "WHERE o.queue = :queue::text" if one else ""
        # A row that waits for its head counts as blocked. Ages of a queue with more rows than are read come from the
        # first rows of the table, too, because rows with keys are not read in the order of their ages.
        return Statement(f"""WITH RECURSIVE {self._names(one=one)},
front AS MATERIALIZED (
  SELECT o.queue, o.created_at, o.next_attempt_at, {STATE} AS state,
         o.entity_key IS NULL OR o.id = (
           SELECT h.id FROM {self._outbox} h
            WHERE h.queue = o.queue AND h.entity_key = o.entity_key AND h.entity_key IS NOT NULL
            ORDER BY h.queue, h.entity_key, h.id LIMIT 1) AS claimable
    FROM ({front}) o {of_one}),
ages AS MATERIALIZED (
  SELECT f.queue, min(f.created_at) AS created,
         min(f.next_attempt_at) FILTER (WHERE f.claimable AND f.state = 'ready') AS due,
         min(f.next_attempt_at) FILTER (WHERE f.claimable AND f.state IN ('ready', 'expired')) AS free,
         min(f.next_attempt_at) FILTER (WHERE f.claimable AND f.state IN ('ready', 'in_flight', 'expired')) AS late
    FROM front f GROUP BY f.queue)
SELECT q.queue, t.ready, t.scheduled, t.in_flight, t.expired, t.blocked, least(d.number, {cap}),
       greatest(t.blocked_keys, k.blocked), greatest(t.parked_keys, k.parked),
       {epoch("now()")} - {epoch("least(t.due, a.due)")}, {epoch("now()")} - {epoch("least(t.created, a.created)")},
       {epoch("now()")} - {epoch("least(t.late, a.late)")},
       t.retrying, {epoch("now()")} - {epoch("least(t.free, a.free)")},
       t.due_rows > {cap}, t.later_rows > {cap}, t.keyed_rows > {cap}, k.visited >= {_COUNTED_HEADS}, d.number > {cap}
  FROM queues q CROSS JOIN LATERAL (
    SELECT least({cap}, count(*) FILTER (WHERE c.counts_as = 'ready')) AS ready,
           least({cap}, count(*) FILTER (WHERE c.counts_as = 'scheduled')) AS scheduled,
           least({cap}, count(*) FILTER (WHERE c.counts_as = 'in_flight')) AS in_flight,
           least({cap}, count(*) FILTER (WHERE c.counts_as = 'expired')) AS expired,
           least({cap}, count(*) FILTER (WHERE c.counts_as = 'blocked')) AS blocked,
           least({cap}, count(*) FILTER (WHERE c.state = 'retrying')) AS retrying,
           count(*) FILTER (WHERE c.is_head AND c.state IN ({_BLOCKED})) AS blocked_keys,
           count(*) FILTER (WHERE c.is_head AND c.state = 'parked') AS parked_keys,
           min(c.next_attempt_at) FILTER (WHERE c.counts_as = 'ready') AS due,
           min(c.next_attempt_at) FILTER (WHERE c.counts_as IN ('ready', 'expired')) AS free,
           min(c.created_at) AS created,
           min(c.next_attempt_at) FILTER (WHERE c.counts_as IN ('ready', 'in_flight', 'expired')) AS late,
           count(*) FILTER (WHERE c.part = 1) AS due_rows,
           count(*) FILTER (WHERE c.part = 2) AS later_rows,
           count(*) FILTER (WHERE c.part = 3) AS keyed_rows
      FROM (SELECT r.*, CASE WHEN r.state IN ('in_flight', 'expired') THEN r.state
                   WHEN r.head_state <> 'ready' AND NOT r.is_head OR r.is_head AND r.state = 'parked' THEN 'blocked'
                   WHEN r.state = 'ready' THEN 'ready' ELSE 'scheduled' END AS counts_as FROM (
      ({self._without_key(1, "<=", cap)})
      UNION ALL
      ({self._without_key(2, ">", cap)})
      UNION ALL
      SELECT 3, k.created_at, k.next_attempt_at, k.state, first_value(k.state) OVER its_key,
             row_number() OVER its_key = 1, k.attempts_count
        FROM (SELECT o.id, o.entity_key, o.created_at, o.next_attempt_at, o.attempts_count, {STATE} AS state
                FROM {self._outbox} o WHERE o.entity_key IS NOT NULL AND o.queue = q.queue
               ORDER BY o.entity_key, o.id LIMIT {cap + 1}) k
      WINDOW its_key AS (PARTITION BY k.entity_key ORDER BY k.id)) r) c) t
  CROSS JOIN LATERAL ({self._count_heads(f"t.keyed_rows > {cap}")}) k
  CROSS JOIN LATERAL ({dead}) d
  LEFT JOIN ages a ON a.queue = q.queue
 WHERE q.queue IS NOT NULL ORDER BY q.queue""")

    def _count_heads(self, wanted: str) -> str:
        """Return SQL that counts blocked keys from head to head; rows of one key cannot hide the others."""
        first = self._probe("o.queue = q.queue", f"'', '{BEGINNING[1]}'::bigint", wanted)
        following = self._probe("o.queue = q.queue", f"w.key, {LAST_ID}")
        return f"""WITH RECURSIVE walk AS (
    SELECT x.*, 1 AS n FROM ({first}) x
    UNION ALL
    SELECT x.*, w.n + 1 FROM walk w CROSS JOIN LATERAL ({following}) x WHERE w.n < {_COUNTED_HEADS})
  SELECT count(*) AS visited, count(*) FILTER (WHERE w.state IN ({_BLOCKED})) AS blocked,
         count(*) FILTER (WHERE w.state = 'parked') AS parked FROM walk w"""

    def _probe(self, where: str, after: str, condition: str = "true") -> str:
        return f"""SELECT o.entity_key AS key, {STATE} AS state FROM {self._outbox} o
      WHERE o.entity_key IS NOT NULL AND {where} AND (o.entity_key, o.id) > ({after}) AND {condition}
      ORDER BY o.entity_key, o.id LIMIT 1"""

    def _head_after(self, after: str) -> str:
        return f"""SELECT o.queue::text AS queue, o.entity_key AS key, o.id, ({STATE}) = ANY (:states::text[]) AS wanted
      FROM {self._outbox} o WHERE o.entity_key IS NOT NULL AND (o.queue, o.entity_key, o.id) > ({after})
     ORDER BY o.queue, o.entity_key, o.id LIMIT 1"""

    def _keys(self) -> Statement:
        # From head to head, one probe of the index each, until enough are found or visited or the queue asked for ends.
        here = "(:queue::text IS NULL OR x.queue = :queue::text)"
        first = self._head_after(f":after_queue::text, :after_key::text, {LAST_ID}")
        return Statement(f"""WITH RECURSIVE walk AS (
  SELECT x.*, x.wanted::int::bigint AS found, 1 AS n FROM ({first}) x WHERE {here}
  UNION ALL
  SELECT x.*, w.found + x.wanted::int, w.n + 1
    FROM walk w CROSS JOIN LATERAL ({self._head_after(f"w.queue, w.key, {LAST_ID}")}) x
   WHERE w.found < :limit::bigint AND w.n < {MOST_KEYS_VISITED} AND {here})
SELECT w.n, w.queue, w.key, w.wanted, {epoch("now()")}, f.waiting, {_HEAD}
  FROM (SELECT w.*, max(w.n) OVER () AS visited FROM walk w) w
  LEFT JOIN LATERAL (SELECT o.* FROM {self._outbox} o WHERE o.id = w.id LIMIT 1) o ON w.wanted
  LEFT JOIN LATERAL (
    SELECT count(*) AS waiting FROM (
      SELECT FROM {self._outbox} f
       WHERE f.queue = w.queue AND f.entity_key = w.key AND f.entity_key IS NOT NULL AND f.id > w.id
       ORDER BY f.queue, f.entity_key, f.id LIMIT {MOST_WAITING + 1}) f) f ON w.wanted
 WHERE w.wanted OR w.n = w.visited ORDER BY w.n""")
