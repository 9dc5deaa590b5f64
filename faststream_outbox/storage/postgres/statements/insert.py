"""The statements of publishing: rows in, one or many, and timers that are put off or cancelled."""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.postgres.statements.locks import lock_class, lock_stripe
from faststream_outbox.storage.postgres.statements.rows import Statement
from faststream_outbox.storage.schema.tables import quoted_name

# When a new row is due: at an instant, after a delay, or now.
_DUE: Final = "coalesce(to_timestamp($7::float8), now() + make_interval(secs => $6::float8), now())"


def _notifying(insert: Statement) -> Statement:
    return Statement(f"{insert.text}, pg_notify($8::text, queue)::text")


class InsertStatements:
    """The statements that run in the transaction of whoever publishes, for one outbox."""

    def __init__(self, outbox: Table) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._lock_class = lock_class(self._outbox)
        self.insert = self._insert(keyed=False)
        self.insert_keyed = self._insert(keyed=True)
        self.insert_timer = self._insert(keyed=False, timer=True)
        self.insert_keyed_timer = self._insert(keyed=True, timer=True)
        self.extend_timer = self._extend_timer()
        self.insert_many = self._insert_many()
        self.insert_alike = self._insert_alike()
        # By the statement without it: the same, and a notification that goes out with the caller's commit.
        self.notifying = {
            **{one: _notifying(one) for one in (self.insert, self.insert_keyed)},
            **{one: _notifying(one) for one in (self.insert_timer, self.insert_keyed_timer)},
            self.insert_many: self._insert_many(notify=True),
            self.insert_alike: self._insert_alike(notify=True),
        }
        self.cancel_timer = self._cancel_timer()

    def _insert(self, *, keyed: bool, timer: bool = False) -> Statement:
        # A keyed row draws its id under a lock held to the caller's commit: ids of one key then follow its commits.
        lock = f"pg_advisory_xact_lock({self._lock_class}, {lock_stripe('$1::text', '$2::text')})"
        with_lock = f"WITH locked AS MATERIALIZED (SELECT {lock})\n" if keyed else ""
        from_lock = " FROM locked" if keyed else ""
        on_conflict = "\nON CONFLICT (queue, timer_id) WHERE timer_id IS NOT NULL DO NOTHING" if timer else ""
        return Statement(f"""{with_lock}INSERT INTO {self._outbox}
       (queue, entity_key, payload, headers, timer_id, next_attempt_at)
SELECT $1::text, $2::text, $3::bytea, $4::text::jsonb, $5::text,
       {_DUE}{from_lock}{on_conflict}
RETURNING id""")

    def _extend_timer(self) -> Statement:
        # Its own statement, and SKIP LOCKED: the conflict clause of an INSERT would lock a row in flight until the
        # caller's commit, and whoever holds it could neither renew nor settle meanwhile.
        due = _DUE.replace("$6", "$4").replace("$7", "$3")
        return Statement(f"""UPDATE {self._outbox} o SET next_attempt_at = {due} WHERE o.id = (
  SELECT t.id FROM {self._outbox} t
   WHERE t.queue = $1::text AND t.timer_id = $2::text AND t.acquired_token IS NULL
     FOR UPDATE SKIP LOCKED)
   AND o.next_attempt_at < {due}
RETURNING o.id""")

    def _insert_many(self, *, notify: bool = False) -> Statement:
        # All stripes are locked, in their order, before the sort lets the first row through to draw its id.
        stripe = lock_stripe("r.queue", "r.key")
        told = "(SELECT count(pg_notify($7::text, q.queue)) FROM (SELECT DISTINCT r.queue FROM input r) q)"
        return Statement(f"""WITH input AS MATERIALIZED (
  SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::float8[], $6::float8[])
           WITH ORDINALITY AS r(queue, key, payload, headers, delay, due, n)),
locked AS MATERIALIZED (
  SELECT count(pg_advisory_xact_lock({self._lock_class}, s.stripe)) AS n
    FROM (SELECT DISTINCT {stripe} AS stripe FROM input r WHERE r.key IS NOT NULL ORDER BY 1) s),
made AS (
  INSERT INTO {self._outbox} (queue, entity_key, payload, headers, next_attempt_at)
  SELECT r.queue, r.key, r.payload, r.headers::jsonb,
         coalesce(to_timestamp(r.due), now() + make_interval(secs => r.delay), now())
    FROM locked CROSS JOIN input r ORDER BY r.n
  RETURNING id)
SELECT array_agg(m.id){f", {told}" if notify else ""} FROM made m""")

    def _insert_alike(self, *, notify: bool = False) -> Statement:
        # What all rows share is sent, and read, once: in a sub-select, which is not evaluated for each row.
        due = _DUE.replace("$6", "$4").replace("$7", "$5")
        told = ", pg_notify($6::text, $1::text)::text" if notify else ""
        return Statement(f"""WITH made AS (
  INSERT INTO {self._outbox} (queue, payload, headers, next_attempt_at)
  SELECT $1::text, r.payload, (SELECT $3::text::jsonb), (SELECT {due})
    FROM unnest($2::bytea[]) WITH ORDINALITY AS r(payload, n) ORDER BY r.n
  RETURNING id)
SELECT array_agg(m.id){told} FROM made m""")

    def _cancel_timer(self) -> Statement:
        # SKIP LOCKED: a row that somebody is claiming just now is in flight, and nobody waits for anybody.
        return Statement(f"""DELETE FROM {self._outbox} o WHERE o.id = (
  SELECT t.id FROM {self._outbox} t
   WHERE t.queue = $1::text AND t.timer_id = $2::text AND t.lease_expires_at <= now()
     FOR UPDATE SKIP LOCKED)
RETURNING o.id""")
