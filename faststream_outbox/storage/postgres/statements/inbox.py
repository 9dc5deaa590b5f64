"""The statements for the table of an inbox."""

from sqlalchemy import Table

from faststream_outbox.storage.postgres.statements.rows import Statement
from faststream_outbox.storage.schema.tables import quoted_name


class InboxStatements:
    """The statements for the table of an inbox."""

    def __init__(self, table: Table) -> None:
        inbox = quoted_name(table.name, table.schema)
        # Where another transaction is recording the same, this waits for it: then either it was seen, or it is ours.
        self.record = Statement(
            f"INSERT INTO {inbox} (consumer, message_id) VALUES ($1, $2) "
            "ON CONFLICT (consumer, message_id) DO NOTHING RETURNING 1"
        )
        # True of one transaction only, and an error in one that has failed, which a COMMIT would quietly roll back.
        self.holds = Statement(
            f"SELECT 1 FROM {inbox} WHERE consumer = $1 AND message_id = $2 AND xmin = pg_current_xact_id()::xid"
        )
        self.clean = Statement(
            f"WITH old AS (SELECT ctid FROM {inbox} WHERE consumer = $1 "
            "AND seen_at < now() - make_interval(secs => $2::float8) ORDER BY seen_at LIMIT $3::bigint "
            "FOR UPDATE SKIP LOCKED), "
            f"gone AS (DELETE FROM {inbox} WHERE ctid = ANY(ARRAY(SELECT ctid FROM old)) RETURNING 1) "
            "SELECT count(*) FROM gone"
        )
