"""The questions of the doctor to the server and its catalogs; none of them reads a table of the outbox."""

from typing import Final

from faststream_outbox.storage.postgres.statements.statement import Columns, Statement, epoch

# Sent first in each transaction of the doctor. Plans that scan a table are left out, as on the store's own connections,
# so that a question costs the same whatever the tables hold.
BEGIN_QUESTION: Final = Statement(
    "SELECT "
    + ", ".join(
        f"set_config('{name}', '{value}', true)"
        for name, value in {
            "transaction_read_only": "on",
            "lock_timeout": "1s",
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
            "enable_sort": "off",
            "jit": "off",
        }.items()
    )
    + ", set_config('statement_timeout', :limit::text, true)"
)

# The fields of `Server` in the doctor's room.
SERVER: Final = Statement(f"""SELECT current_setting('server_version_num')::int, current_setting('server_version'),
  pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on',
  coalesce((SELECT s.source FROM pg_settings s WHERE s.name = 'default_transaction_read_only'), ''),
  current_user::text, current_database()::text, pg_has_role('pg_read_all_stats', 'USAGE'),
  current_setting('autovacuum') = 'on', current_setting('track_counts') = 'on',
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
  (SELECT count(*) FROM pg_stat_activity a
    WHERE a.usesysid IS NOT NULL AND coalesce(a.backend_type, 'client backend') = 'client backend'),
  pg_notification_queue_usage(), {epoch("clock_timestamp()")}""")

SERVER_TIME: Final = Statement(f"SELECT {epoch('clock_timestamp()')}")
BACKEND: Final = Statement("SELECT pg_backend_pid()")

WANTED: Final = Columns("table", name="text", schema="text")
# The tables that exist: their numbers among those asked for, and whether this role may use and read them.
TABLES: Final = Statement(f"""SELECT t.n, c.oid::bigint, n.oid::bigint, n.nspname::text,
  has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT')
  FROM {WANTED.unnest("t", numbered=True)}
  JOIN pg_class c ON c.relname = t.name AND c.relkind IN ('r', 'p')
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE CASE WHEN t.schema IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = t.schema END ORDER BY t.n""")

RIGHTS: Final = Columns("right", number="bigint", object="bigint", name="text", field="text")
MISSING_RIGHTS: Final = Statement(f"""SELECT DISTINCT r.number FROM {RIGHTS.unnest("r")}
 WHERE NOT CASE WHEN r.name = 'USAGE' THEN has_schema_privilege(r.object::oid, 'USAGE')
                WHEN r.field IS NULL THEN has_table_privilege(r.object::oid, r.name)
                ELSE has_column_privilege(r.object::oid, r.field, r.name) END""")

# Functions that the statements of publishers and subscribers call. All roles may, unless an administrator revoked it.
FUNCTIONS: Final = (
    "pg_catalog.pg_notify(text, text)",
    "pg_catalog.pg_advisory_xact_lock(integer, integer)",
    "pg_catalog.pg_try_advisory_lock_shared(bigint)",
)
MISSING_FUNCTIONS: Final = Statement(
    "SELECT f.name FROM unnest(:functions::text[]) AS f(name) WHERE NOT has_function_privilege(f.name, 'EXECUTE')"
)

# Each holder of an old snapshot: its kind, name, owner, label, state, since when, how many transactions ago.
SNAPSHOTS: Final = Statement(f"""SELECT 'session', a.pid::text, coalesce(a.usename::text, ''),
       coalesce(a.application_name, ''), coalesce(a.state, ''), {epoch("a.xact_start")},
       greatest(age(a.backend_xid), age(a.backend_xmin))::bigint AS held
  FROM pg_stat_activity a
 WHERE (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL) AND a.pid <> pg_backend_pid()
   AND a.datname = current_database() AND coalesce(a.backend_type, 'client backend') = 'client backend'
UNION ALL
SELECT 'standby', r.pid::text, coalesce(r.usename::text, ''), coalesce(r.application_name, ''), coalesce(r.state, ''),
       NULL, age(r.backend_xmin)
  FROM pg_stat_replication r WHERE r.backend_xmin IS NOT NULL
UNION ALL
SELECT 'prepared', p.gid, p.owner::text, '', '', {epoch("p.prepared")}, age(p.transaction)
  FROM pg_prepared_xacts p WHERE p.database = current_database()
UNION ALL
SELECT 'slot', s.slot_name::text, s.slot_type, coalesce(s.plugin::text, ''),
       CASE WHEN s.active THEN 'active' ELSE 'inactive' END, NULL, age(s.xmin)
  FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
 ORDER BY held DESC""")

# Slots that nobody reads, and how many bytes of the write-ahead log the server keeps for each.
IDLE_SLOTS: Final = Statement("""SELECT s.slot_name::text, s.slot_type,
       pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint
  FROM pg_replication_slots s WHERE NOT s.active AND s.restart_lsn IS NOT NULL ORDER BY s.slot_name""")

OLDEST_TRANSACTION: Final = Statement(f"""SELECT a.pid, coalesce(a.application_name, ''), {epoch("a.xact_start")}
  FROM pg_stat_activity a WHERE a.xact_start IS NOT NULL AND a.datname = current_database()
   AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend' ORDER BY a.xact_start LIMIT 1""")

# Counters of each table; NULL where nothing was counted yet.
COUNTERS: Final = Statement(f"""SELECT s.relid::bigint, s.n_dead_tup, s.n_tup_upd, s.n_tup_hot_upd,
       {epoch("greatest(s.last_vacuum, s.last_autovacuum)")},
       EXISTS (SELECT FROM pg_stat_progress_vacuum p WHERE p.relid = s.relid)
  FROM pg_stat_all_tables s WHERE s.relid = ANY (:oids::bigint[]::oid[])""")

# Indexes that depend on one of these columns, by a key, an expression or a condition.
INDEXES_ON: Final = Statement("""SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       array_agg(DISTINCT a.attname::text)
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = ANY (:columns::text[])
  JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
   AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum
 WHERE i.indrelid = :oid::bigint::oid GROUP BY 1 ORDER BY 1""")

# The sequence that a table's ids are drawn from: its quoted name, its end, its CACHE, whether its state is readable,
# and where its type ends.
SEQUENCE: Final = Statement("""SELECT s.name, q.seqmax, q.seqcache, has_sequence_privilege(q.seqrelid, 'SELECT'),
       CASE q.seqtypid WHEN 'bigint'::regtype THEN 9223372036854775807 WHEN 'integer'::regtype THEN 2147483647
                       ELSE 32767 END
  FROM (SELECT pg_get_serial_sequence(:table::text, 'id') AS name) s
  JOIN pg_sequence q ON q.seqrelid = s.name::regclass""")


def sequence_state(sequence: str) -> Statement:
    """Return the statement that reads the last value of a sequence, by its quoted name, and whether it was used."""
    return Statement(f"SELECT last_value, is_called FROM {sequence}")
