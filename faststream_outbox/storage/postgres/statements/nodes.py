"""The statements that read which nodes are alive and what they hold, and those of the table of nodes."""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.nodes import LOCK_TAG
from faststream_outbox.storage.operating.filters import COUNT_CAP
from faststream_outbox.storage.ordering.key_cursor import BEGINNING, LAST_ID
from faststream_outbox.storage.postgres.statements.search import next_queue
from faststream_outbox.storage.postgres.statements.statement import Statement, epoch
from faststream_outbox.storage.schema.tables import quoted_name

# The id of the node that has a lock. Postgres shows a lock of 64 bits as two numbers of 32.
_ID: Final = "((l.classid::bigint & 65535) << 32 | l.objid::bigint)"
_IS_LOCK: Final = f"l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.classid::bigint >> 16 = {LOCK_TAG}"
# The ids of all nodes whose locks are there, in all databases of the server.
LOCKED_NODES: Final = f"SELECT DISTINCT {_ID} FROM pg_locks l WHERE {_IS_LOCK}"
# The node that holds a row `o`; NULL for a row that is free, or whose token names no node.
NODE: Final = """CASE WHEN o.acquired_token IS NOT NULL AND substr(o.acquired_token::text, 15, 1) = '8'
            THEN left(o.acquired_token::text, 13) END"""
_HELD_BY: Final = f"CASE WHEN o.lease_expires_at > now() THEN {NODE} END"

# The nodes of this database that are alive: id, name of the listening connection, and since when it is open.
LIVING_NODES: Final = Statement(f"""SELECT {_ID}, max(a.application_name), {epoch("min(a.backend_start)")}
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE {_IS_LOCK} AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) GROUP BY 1""")
# Whether this role may read the locks, the names of connections, and a table, by its quoted name.
READABLE: Final = Statement("""SELECT has_table_privilege('pg_catalog.pg_locks', 'SELECT')
  AND has_table_privilege('pg_catalog.pg_stat_activity', 'SELECT'),
  coalesce(has_table_privilege(to_regclass(:table::text), 'SELECT'), false)""")


class NodeTableStatements:
    """The statements for one table of nodes."""

    def __init__(self, nodes: Table) -> None:
        table = self.table = quoted_name(nodes.name, nodes.schema)
        self.read = Statement(
            f"SELECT n.name, n.host, n.pid, n.version, {epoch('n.started_at')}, n.queues, n.strategy FROM {table} n "
            f"ORDER BY n.name LIMIT {COUNT_CAP}"
        )
        self.write = Statement(f"""INSERT INTO {table} (name, host, pid, version, started_at, queues, strategy)
VALUES (:name::text, :host::text, :pid::int, :version::text, now() - make_interval(secs => :age::float8),
        :queues::text[], :strategy::text) ON CONFLICT DO NOTHING RETURNING name""")
        self.remove = Statement(f"DELETE FROM {table} n WHERE n.name = :name::text RETURNING n.name")
        # A node writes its row after it took its lock: a row without a lock is that of a node which lost it.
        self.remove_dead = Statement(f"""DELETE FROM {table} n WHERE n.name <> ALL (:alive::text[])
   AND NOT EXISTS (SELECT FROM pg_locks l WHERE {_IS_LOCK}
                      AND lpad(to_hex({_ID}), 12, '0') = replace(n.name, '-', '')) RETURNING n.name""")


def count_held(outbox: Table) -> Statement:
    """Return the statement that counts what each node holds: among the first due rows of a queue, and heads of keys."""
    table = quoted_name(outbox.name, outbox.schema)
    first, following = (next_queue(table, beyond) for beyond in (">= ''", "> q.queue"))
    return Statement(f"""WITH RECURSIVE queues(queue) AS (
  SELECT {first}
  UNION ALL
  SELECT {following} FROM queues q WHERE q.queue IS NOT NULL),
walk AS (
  SELECT x.*, 1 AS n FROM ({_head(table, f"'', '', '{BEGINNING[1]}'::bigint")}) x
  UNION ALL
  SELECT x.*, w.n + 1 FROM walk w CROSS JOIN LATERAL ({_head(table, f"w.queue, w.key, {LAST_ID}")}) x
   WHERE w.n < {COUNT_CAP})
SELECT s.node, count(*), bool_or(s.cut) FROM (
  SELECT r.node, r.seen > {COUNT_CAP} AS cut FROM queues q CROSS JOIN LATERAL (
    SELECT o.node, count(*) OVER () AS seen FROM (
      SELECT {_HELD_BY} AS node FROM {table} o
       WHERE o.entity_key IS NULL AND o.queue = q.queue AND o.next_attempt_at <= now()
       ORDER BY o.next_attempt_at, o.id LIMIT {COUNT_CAP + 1}) o) r
  UNION ALL
  SELECT w.node, (SELECT max(w.n) >= {COUNT_CAP} FROM walk w) FROM walk w) s
 WHERE s.node IS NOT NULL GROUP BY s.node""")


def _head(table: str, after: str) -> str:
    return f"""SELECT o.queue, o.entity_key AS key, {_HELD_BY} AS node
      FROM {table} o WHERE o.entity_key IS NOT NULL AND (o.queue, o.entity_key, o.id) > ({after})
     ORDER BY o.queue, o.entity_key, o.id LIMIT 1"""
