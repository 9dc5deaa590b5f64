"""The statements that hold a key: a parked row that is no message, behind which later messages wait.

To claims it is a parked head like any other, so a held key costs them nothing. An operator who releases, retries or
skips the key deletes the row; it is never handed to a handler, and never becomes a dead letter.
"""

from sqlalchemy import Table

from faststream_outbox.storage.operating.acts import EXAMINED
from faststream_outbox.storage.parking import BY_OPERATOR, HOLDS, PARKED, sql_holds
from faststream_outbox.storage.postgres.statements.insert import lock_class, lock_stripe
from faststream_outbox.storage.postgres.statements.statement import Statement, epoch
from faststream_outbox.storage.schema.tables import quoted_name


class KeyActStatements:
    """The statements for one outbox."""

    def __init__(self, outbox: Table) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self.lock = self._lock()
        self.head = self._head()
        self.hold = self._hold()
        self.find_hold = Statement(f"SELECT r.id FROM {self._holds()} LIMIT 1")
        self.drop_holds = self._drop_holds()

    def _lock(self) -> Statement:
        # The lock of publishers: what they commit before it is seen by the next statement, what they insert after it
        # is behind the row that holds the key.
        stripe = lock_stripe(":queue::text", ":key::text")
        return Statement(f"""SELECT current_setting('transaction_isolation'),
       pg_try_advisory_xact_lock({lock_class(self._outbox)}, {stripe})""")

    def _rows(self, limit: int) -> str:
        return f"""(SELECT o.id, o.next_attempt_at, o.headers FROM {self._outbox} o
   WHERE o.queue = :queue::text AND o.entity_key = :key::text AND o.entity_key IS NOT NULL
   ORDER BY o.queue, o.entity_key, o.id LIMIT {limit})"""

    def _head(self) -> Statement:
        return Statement(f"SELECT r.id, r.next_attempt_at = 'infinity' FROM {self._rows(1)} r")

    def _holds(self) -> str:
        # Among the first rows of the key: it may be behind messages that waited when the key was held.
        return f"{self._rows(EXAMINED)} r WHERE r.next_attempt_at = 'infinity' AND {sql_holds('r.headers')}"

    def _hold(self) -> Statement:
        cause = (
            f"jsonb_build_object('reason', '{BY_OPERATOR}', 'exception', :reason::text, "
            f"'parked_at', {epoch('now()')}, '{HOLDS}', true)"
        )
        return Statement(f"""INSERT INTO {self._outbox} (queue, entity_key, payload, headers, next_attempt_at)
VALUES (:queue::text, :key::text, ''::bytea, jsonb_build_object('{PARKED}', {cause}), 'infinity') RETURNING id""")

    def _drop_holds(self) -> Statement:
        return Statement(f"""DELETE FROM {self._outbox} o WHERE o.id = ANY (ARRAY(
  SELECT l.id FROM {self._outbox} l WHERE l.id = ANY (ARRAY(SELECT r.id FROM {self._holds()}))
     FOR UPDATE OF l SKIP LOCKED)) RETURNING o.id""")
