"""The question of the doctor about locks that keep everybody else from a table."""

from typing import Final

from faststream_outbox.storage.postgres.statements.statement import Statement, epoch

# Modes that exclude writes; the last one excludes reads, too. Vacuums and CREATE INDEX CONCURRENTLY take weaker ones.
_STRONG: Final = "'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'"

# Each such lock that is held or awaited on a table or one of its indexes, with each transaction that must end before
# others get their turn: its process (0 if it is a prepared one), name if prepared, role, label, state, begin and
# statement; then the process that holds or awaits the lock, its role, label and statement, the table, the mode; and
# since when a session waits for that table.
# A prepared transaction is found by the lock that each transaction has on its own id.
# Roles without pg_read_all_stats see of other roles no state, no times and no statements. They do see pg_locks.
LOCKS: Final = Statement(f"""WITH RECURSIVE ours AS (
  SELECT t.oid AS shown, t.oid::oid AS relation FROM unnest(:oids::bigint[]) AS t(oid)
  UNION ALL
  SELECT i.indrelid::bigint, i.indexrelid FROM pg_index i WHERE i.indrelid = ANY (:oids::bigint[]::oid[])),
locks AS MATERIALIZED (
  SELECT o.shown, coalesce(l.pid, 0) AS pid, l.virtualtransaction AS owner, l.mode, l.waitstart
    FROM pg_locks l JOIN ours o ON o.relation = l.relation
    JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()),
strong AS (SELECT DISTINCT l.shown, l.pid, l.mode FROM locks l WHERE l.mode IN ({_STRONG})),
chain AS (
  SELECT s.pid AS locker, s.pid AS root FROM strong s
  UNION
  SELECT c.locker, b.pid FROM chain c CROSS JOIN LATERAL unnest(pg_blocking_pids(c.root)) AS b(pid))
SELECT c.root, coalesce(p.gid, ''), coalesce(r.usename::text, p.owner::text, ''),
       coalesce(nullif(r.application_name, ''), nullif(r.backend_type, 'client backend'), ''),
       coalesce(r.state, ''), coalesce({epoch("r.xact_start")}, {epoch("p.prepared")}), coalesce(r.query, ''),
       c.locker, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), coalesce(a.query, ''),
       s.shown, s.mode, (SELECT {epoch("min(w.waitstart)")} FROM locks w WHERE w.shown = s.shown)
  FROM chain c JOIN strong s ON s.pid = c.locker
  LEFT JOIN pg_stat_activity r ON r.pid = c.root LEFT JOIN pg_stat_activity a ON a.pid = c.locker
  LEFT JOIN pg_prepared_xacts p ON c.root = 0 AND EXISTS (
    SELECT FROM locks l JOIN pg_locks x ON x.virtualtransaction = l.owner AND x.transactionid = p.transaction
     WHERE l.shown = s.shown AND l.pid = 0 AND x.pid IS NULL)
 WHERE cardinality(pg_blocking_pids(c.root)) = 0
 ORDER BY c.root <> c.locker, c.root, s.shown, s.mode""")
