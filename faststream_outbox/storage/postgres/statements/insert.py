"""The statements of publishing: insert rows, one or many, extend or cancel timers; and the locks that order keys."""

import zlib
from typing import Any, Final

from sqlalchemy import Table

from faststream_outbox.storage.postgres.statements.statement import Columns, Statement
from faststream_outbox.storage.rows import NewRow
from faststream_outbox.storage.schema.tables import notify_channel, quoted_name

# A publisher locks a stripe of keys until its commit, not each key: a transaction may publish for tens of thousands of
# keys, and each lock takes a place in a table of fixed size. The price: unrelated keys of one stripe wait for another.
_STRIPES: Final = 1024

_ROW_TYPES: Final = {"queue": "text", "key": "text", "payload": "bytea", "headers": "text"}
_DUE_TYPES: Final = {"delay": "float8", "due": "float8"}
NEW_ROWS: Final = Columns("new", **_ROW_TYPES, **_DUE_TYPES)
NEW_TIMERS: Final = Columns("new", **_ROW_TYPES, timer_id="text", **_DUE_TYPES)
# Rows to insert once others are deleted: `of` is the number of the group or the id of the row that each belongs to.
OUTPUTS: Final = Columns("output", of="bigint", **_ROW_TYPES, timer_id="text", **_DUE_TYPES)


def output_values(of: int, new: NewRow) -> tuple[Any, ...]:
    """Return one row of `OUTPUTS`."""
    return (of, new.queue, new.key, new.payload, new.headers_json, new.timer_id, new.delay_seconds, new.due_epoch)


def row_values(row: NewRow, *, notify: bool) -> dict[str, Any]:
    """Return the parameters of the statement that inserts one row."""
    return {
        "queue": row.queue,
        "key": row.key,
        "payload": row.payload,
        "headers": row.headers_json,
        "timer_id": row.timer_id,
        "delay": row.delay_seconds,
        "due": row.due_epoch,
        "notify": notify,
    }


def lock_class(quoted_table: str) -> int:
    """Return the class of a table's advisory locks: a hash, so that two tables of one database have different locks."""
    return zlib.crc32(quoted_table.encode()) - 2**31


def lock_stripe(queue: str, key: str) -> str:
    """Return SQL for the number of a key's lock. Who publishes holds it to the commit: ids of a key follow commits."""
    return f"(hashtextextended({queue} || chr(1) || {key}, 0) & {_STRIPES - 1})::int"


def insert_input(outbox: str, *, timers: bool, returning: str = "") -> str:
    """Return the parts of a statement, `locked` and `made`, that insert the rows of its part `input`, aliased `r`.

    All stripes are locked, in their order, before the sort passes on the first row, which then draws its id.
    """
    timer_id, timer_value = ("timer_id, ", "r.timer_id, ") if timers else ("", "")
    conflict = "\n  ON CONFLICT (queue, timer_id) WHERE timer_id IS NOT NULL DO NOTHING" if timers else ""
    return f"""locked AS MATERIALIZED (
  SELECT count(pg_advisory_xact_lock({lock_class(outbox)}, s.stripe)) AS n
    FROM (SELECT DISTINCT {lock_stripe("r.queue", "r.key")} AS stripe FROM input r WHERE r.key IS NOT NULL
           ORDER BY 1) s),
made AS (
  INSERT INTO {outbox} (queue, entity_key, payload, headers, {timer_id}next_attempt_at)
  SELECT r.queue, r.key, r.payload, r.headers::jsonb, {timer_value}{_due("r.due", "r.delay")}
    FROM locked CROSS JOIN input r ORDER BY r.n{conflict}{returning})"""


def insert_outputs(outbox: str, done: str, column: str) -> str:
    """Return the parts of a statement that insert `OUTPUTS` of what its part `done` has deleted, matched by `column`.

    The locks and the sort read all of `done`, so all these rows are gone before the first output is inserted: a timer
    may set itself again.
    """
    return f"""input AS MATERIALIZED (
  SELECT r.* FROM {done} d JOIN {OUTPUTS.unnest("r", numbered=True)} ON r.of = d.{column}),
{insert_input(outbox, timers=True)}"""


def _due(at: str, delay: str) -> str:
    # When a new row is due: at an instant, after a delay, or now.
    return f"coalesce(to_timestamp({at}), now() + make_interval(secs => {delay}), now())"


_DUE: Final = _due(":due::float8", ":delay::float8")


class InsertStatements:
    """The statements that run in the publisher's transaction, for one outbox.

    With the parameter `notify` an insert also sends a notification, which goes out with the publisher's commit. It is a
    parameter, and not a second text, so that each connection prepares and plans an insert once.
    """

    def __init__(self, outbox: Table) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._channel = notify_channel(outbox.name, outbox.schema).replace("'", "''")
        self.insert = self._insert(keyed=False)
        self.insert_keyed = self._insert(keyed=True)
        self.insert_timer = self._insert(keyed=False, timer=True)
        self.insert_keyed_timer = self._insert(keyed=True, timer=True)
        self.extend_timer = self._extend_timer()
        self.insert_many = self._insert_many()
        self.insert_timers = self._insert_timers()
        self.insert_alike = self._insert_alike()
        self.cancel_timer = self._cancel_timer()

    def for_row(self, row: NewRow) -> Statement:
        """Return the statement that inserts this row, with `row_values`."""
        if row.timer_id is None:
            return self.insert if row.key is None else self.insert_keyed
        return self.insert_timer if row.key is None else self.insert_keyed_timer

    def _notified(self, queue: str, rows: str = "") -> str:
        """Return a column that notifies of a queue, or of each queue that `rows` has."""
        notified = f"pg_notify('{self._channel}', {queue})::text"
        return f"CASE WHEN :notify::bool THEN {f'(SELECT max({notified}) {rows})' if rows else notified} END"

    def _insert(self, *, keyed: bool, timer: bool = False) -> Statement:
        # A keyed row draws its id under a lock held to the caller's commit: ids of one key then follow its commits.
        stripe = lock_stripe(":queue::text", ":key::text")
        lock = f"pg_advisory_xact_lock({lock_class(self._outbox)}, {stripe})"
        with_lock = f"WITH locked AS MATERIALIZED (SELECT {lock})\n" if keyed else ""
        from_lock = " FROM locked" if keyed else ""
        on_conflict = "\nON CONFLICT (queue, timer_id) WHERE timer_id IS NOT NULL DO NOTHING" if timer else ""
        return Statement(f"""{with_lock}INSERT INTO {self._outbox}
       (queue, entity_key, payload, headers, timer_id, next_attempt_at)
SELECT :queue::text, :key::text, :payload::bytea, :headers::text::jsonb, :timer_id::text,
       {_DUE}{from_lock}{on_conflict}
RETURNING id, {self._notified("queue")}""")

    def _extend_timer(self) -> Statement:
        # A second statement with SKIP LOCKED: the conflict clause of an INSERT would lock a row in flight until the
        # caller's commit, and the process that handles it could neither renew nor settle it until then.
        return Statement(f"""UPDATE {self._outbox} o SET next_attempt_at = {_DUE} WHERE o.id = (
  SELECT t.id FROM {self._outbox} t
   WHERE t.queue = :queue::text AND t.timer_id = :timer_id::text AND t.acquired_token IS NULL
     FOR UPDATE SKIP LOCKED)
   AND o.next_attempt_at < {_DUE}
RETURNING o.id""")

    def _notified_once(self) -> str:
        return self._notified("q.queue", "FROM (SELECT DISTINCT r.queue FROM input r) q")

    def _insert_timers(self) -> Statement:
        # Rows with timers among them: which of these were inserted is known by their names.
        return Statement(f"""WITH input AS MATERIALIZED (
  SELECT * FROM {NEW_TIMERS.unnest("r", numbered=True)}),
{insert_input(self._outbox, timers=True, returning=" RETURNING id, queue, timer_id")}
SELECT m.id, m.queue, m.timer_id, {self._notified_once()} FROM made m""")

    def _insert_many(self) -> Statement:
        return Statement(f"""WITH input AS MATERIALIZED (
  SELECT * FROM {NEW_ROWS.unnest("r", numbered=True)}),
{insert_input(self._outbox, timers=False, returning=" RETURNING id")}
SELECT array_agg(m.id), {self._notified_once()} FROM made m""")

    def _insert_alike(self) -> Statement:
        # Values that all rows share are sent once, and read in a sub-select, which is not evaluated for each row. Rows
        # are made one by one in the order of the array, and draw their ids in it: there is nothing to sort or to join.
        return Statement(f"""WITH made AS (
  INSERT INTO {self._outbox} (queue, payload, headers, next_attempt_at)
  SELECT :queue::text, unnest(:payloads::bytea[]), (SELECT :headers::text::jsonb), (SELECT {_DUE})
  RETURNING id)
SELECT array_agg(m.id), {self._notified(":queue::text")} FROM made m""")

    def _cancel_timer(self) -> Statement:
        # SKIP LOCKED: a row that is being claimed at this moment counts as in flight; waiting would not change that.
        return Statement(f"""DELETE FROM {self._outbox} o WHERE o.id = (
  SELECT t.id FROM {self._outbox} t
   WHERE t.queue = :queue::text AND t.timer_id = :timer_id::text AND t.lease_expires_at <= now()
     FOR UPDATE SKIP LOCKED)
RETURNING o.id""")
