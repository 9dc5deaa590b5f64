"""The statements that pause and resume queues, and that read which queues are paused."""

from sqlalchemy import Table

from faststream_outbox.storage.postgres.statements.statement import Statement, epoch
from faststream_outbox.storage.schema.tables import quoted_name


class ControlStatements:
    """The statements for one control table. Whether a pause is over is decided by the clock of the database."""

    def __init__(self, table: Table) -> None:
        control = quoted_name(table.name, table.schema)
        lasts = "c.kind = 'pause' AND (c.until IS NULL OR c.until > now())"
        self.name = f"The control table {control}"
        self.look = Statement(f"SELECT queue, kind, until, reason, by, since FROM {control} LIMIT 0")
        # The fields of `PauseNote`, to be read beside something else in one statement.
        self.notes = (
            f"ARRAY(SELECT ARRAY[c.queue::text, c.by, c.reason, coalesce(c.until::timestamptz(0)::text, '')] "
            f"FROM {control} c WHERE {lasts})"
        )
        self.read_notes = Statement(f"SELECT {self.notes}")
        # The fields of `Pause`.
        self.read = Statement(
            f"SELECT c.queue, {epoch('c.until')}, c.reason, c.by, {epoch('c.since')} FROM {control} c WHERE {lasts} "
            "ORDER BY c.queue"
        )
        self.pause = Statement(f"""INSERT INTO {control} AS c (queue, kind, until, reason, by)
VALUES (:queue::text, 'pause', to_timestamp(:until::float8), :reason::text, :by::text)
    ON CONFLICT (queue, kind) DO UPDATE SET until = excluded.until, reason = excluded.reason, by = excluded.by,
       since = now()
RETURNING {epoch("c.since")}""")
        self.resume = Statement(
            f"DELETE FROM {control} c WHERE c.queue = :queue::text AND c.kind = 'pause' "
            "RETURNING c.until IS NULL OR c.until > now()"
        )
