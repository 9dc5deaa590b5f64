"""The statements of acts on messages. None waits for a lock of a row, and none locks a row that it does not need.

The lease of a key is that of its head and covers rows behind it, which have no lease of their own. An act that takes
rows away from a key therefore locks its head first, and leaves the key alone if the head is leased or locked. A claim
whose snapshot is older than the act still sees the rows that were taken away: it would hand them out with the head. So
a head that stays is deleted and inserted again under its own id, and such a claim finds its version of it deleted.
"""

from functools import cache
from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.ordering.states import STATE
from faststream_outbox.storage.parking import sql_holds
from faststream_outbox.storage.postgres.statements.insert import lock_class, lock_stripe
from faststream_outbox.storage.postgres.statements.operators import DISOWN
from faststream_outbox.storage.postgres.statements.statement import Columns, Statement
from faststream_outbox.storage.schema.tables import quoted_name

# Keys, each of a queue.
KEYS: Final = Columns("of", queue="text", key="text")

_UNLEASED: Final = "o.lease_expires_at <= now()"
# What an act asks of a row besides the filter.
CAN_COME: Final = "o.acquired_token IS NULL AND o.next_attempt_at > now() AND o.next_attempt_at < 'infinity'"
CAN_GO: Final = f"NOT {sql_holds('o.headers')}"


class MessageActStatements:
    """The statements for one outbox."""

    def __init__(self, outbox: Table) -> None:
        self.table = outbox
        self.outbox = quoted_name(outbox.name, outbox.schema)
        # Columns of the user's own, too; those that Postgres computes cannot be inserted.
        self._columns = [f'"{column.name}"' for column in outbox.columns if column.computed is None]
        self.upper_id = Statement(f"SELECT coalesce(max(o.id), 0) FROM {self.outbox} o")
        self.deliver_now = self._deliver_now()
        self.delete = Statement(f"DELETE FROM {self.outbox} o WHERE o.id = ANY (:ids::bigint[]) RETURNING o.id")
        self.rewrite = self._rewrite()
        self.move = self._move()
        self.lock_stripes = self._lock_stripes()
        self.move_keyed = self._move_keyed()
        self.waiting_timers = self._waiting_timers()

    def _head(self, columns: str, of: str) -> str:
        return f"""SELECT {columns} FROM {self.outbox} h
     WHERE h.queue = {of}.queue AND h.entity_key = {of}.entity_key AND h.entity_key IS NOT NULL
     ORDER BY h.queue, h.entity_key, h.id LIMIT 1"""

    @cache  # noqa: B019 - the statements live as long as the process
    def lock_heads(self, condition: str) -> Statement:
        """Return the statement that locks the heads of the keys of these rows, as far as they match and are free."""
        return Statement(f"""WITH keys AS MATERIALIZED (
  SELECT DISTINCT o.queue, o.entity_key FROM {self.outbox} o
   WHERE o.id = ANY (:ids::bigint[]) AND o.entity_key IS NOT NULL AND {condition}),
heads AS MATERIALIZED (SELECT ({self._head("h.id", "k")}) AS id FROM keys k)
SELECT o.id, o.queue, o.entity_key FROM {self.outbox} o
 WHERE o.id = ANY (ARRAY(SELECT heads.id FROM heads)) AND {_UNLEASED} FOR UPDATE OF o SKIP LOCKED""")

    @cache  # noqa: B019 - same
    def lock(self, condition: str, *, whole_keys: bool) -> Statement:
        """Return the statement that locks rows that match and are free; with `whole_keys` only those of locked keys."""
        of_keys = (
            f" AND (o.entity_key IS NULL OR (o.queue, o.entity_key) IN (SELECT k.queue, k.key FROM {KEYS.unnest('k')}))"
        )
        return Statement(f"""SELECT o.id, o.queue, o.entity_key, o.timer_id FROM {self.outbox} o
 WHERE o.id = ANY (:ids::bigint[]) AND {_UNLEASED} AND {condition}{of_keys if whole_keys else ""}
   FOR UPDATE OF o SKIP LOCKED""")

    @cache  # noqa: B019 - same
    def explain(self, condition: str) -> Statement:
        """Return the statement that shows of rows that were not locked what the reason may be."""
        head = self._head("h.lease_expires_at > now()", "o")
        return Statement(f"""SELECT o.id, o.queue, o.entity_key, {STATE}, coalesce(({head}), false), {condition},
       {sql_holds("o.headers")} FROM {self.outbox} o WHERE o.id = ANY (:ids::bigint[])""")

    def _deliver_now(self) -> Statement:
        # The time of the clock, not of the transaction: subscribers may have claimed up to the present already.
        return Statement(f"""UPDATE {self.outbox} o SET next_attempt_at = clock_timestamp()
 WHERE o.id = ANY (:ids::bigint[]) RETURNING o.id""")

    def _rewrite(self) -> Statement:
        columns = ", ".join(self._columns)
        values = ", ".join(f"g.{name}" for name in self._columns)
        return Statement(f"""WITH gone AS (
  DELETE FROM {self.outbox} o WHERE o.id = ANY (:ids::bigint[]) RETURNING {", ".join(f"o.{n}" for n in self._columns)})
INSERT INTO {self.outbox} ({columns}) SELECT {values} FROM gone g RETURNING id""")

    def _move(self) -> Statement:
        return Statement(f"""UPDATE {self.outbox} o SET queue = :queue::text, {DISOWN}
 WHERE o.id = ANY (:ids::bigint[]) RETURNING o.id""")

    def _lock_stripes(self) -> Statement:
        # It tries each lock once: waiting while it holds others could make a deadlock with a publisher.
        return Statement(f"""WITH keys AS MATERIALIZED (
  SELECT k.key, {lock_stripe(":queue::text", "k.key")} AS stripe FROM unnest(:keys::text[]) AS k(key)),
stripes AS MATERIALIZED (
  SELECT s.stripe, pg_try_advisory_xact_lock({lock_class(self.outbox)}, s.stripe) AS locked
    FROM (SELECT DISTINCT k.stripe FROM keys k) s)
SELECT current_setting('transaction_isolation'),
       array_agg(k.key) FILTER (WHERE k.stripe IN (SELECT s.stripe FROM stripes s WHERE s.locked))
  FROM keys k""")

    def _move_keyed(self) -> Statement:
        # New ids, drawn under the locks of the target's keys: behind what waits there, in the order of the old ones.
        changed = {
            '"queue"': ":queue::text",
            '"acquired_token"': "CASE WHEN g.acquired_token IS NOT NULL THEN gen_random_uuid() END",
        }
        columns = [name for name in self._columns if name != '"id"']
        values = ", ".join(changed.get(name, f"g.{name}") for name in columns)
        return Statement(f"""WITH gone AS (
  DELETE FROM {self.outbox} o WHERE o.id = ANY (:ids::bigint[]) RETURNING {", ".join(f"o.{n}" for n in self._columns)})
INSERT INTO {self.outbox} ({", ".join(columns)}) SELECT {values} FROM gone g ORDER BY g.id RETURNING id""")

    def _waiting_timers(self) -> Statement:
        return Statement(f"""SELECT o.timer_id FROM {self.outbox} o
 WHERE o.queue = :queue::text AND o.timer_id = ANY (:timers::text[]) AND o.timer_id IS NOT NULL""")
