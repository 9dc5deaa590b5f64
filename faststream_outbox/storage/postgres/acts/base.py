"""What the acts on Postgres share: the statements, and the session that runs them."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Table

from faststream_outbox.storage.operating.acts import RowFilter, StoreActs
from faststream_outbox.storage.postgres.admin import Execute
from faststream_outbox.storage.postgres.drivers import SET_LOCAL
from faststream_outbox.storage.postgres.notifications import NOTIFY
from faststream_outbox.storage.postgres.statements.acts.dead_letters import DeadLetterActStatements
from faststream_outbox.storage.postgres.statements.acts.keys import KeyActStatements
from faststream_outbox.storage.postgres.statements.acts.messages import MessageActStatements
from faststream_outbox.storage.postgres.statements.conditions import condition
from faststream_outbox.storage.postgres.statements.operators import OperatorStatements
from faststream_outbox.storage.schema.tables import notify_channel


class ActsBase(StoreActs):
    """Runs statements on the session that is given."""

    def __init__(self, execute: Execute, outbox: Table, dlq: Table | None) -> None:
        self._execute = execute
        self._channel = notify_channel(outbox.name, outbox.schema)
        self._messages = MessageActStatements(outbox)
        self._keys = KeyActStatements(outbox)
        self._operators = OperatorStatements(outbox, dlq)
        self._letters = None if dlq is None else DeadLetterActStatements(dlq)

    @property
    def _dead_letters(self) -> DeadLetterActStatements:
        if self._letters is None:
            raise ValueError("This outbox has no table of dead letters: give dlq_table=make_dlq_table(metadata).")
        return self._letters

    def prepare(self, session: Any) -> None:
        """Make the plans of this transaction those of the store's own connections."""
        self._execute(session, SET_LOCAL)

    def _condition(self, where: RowFilter | None) -> str:
        return condition(where, self._messages.outbox)

    def notify(self, session: Any, queues: Sequence[str]) -> None:
        """Notify the subscribers of these queues with the commit."""
        self._execute(session, NOTIFY, channel=self._channel, payloads=list(queues))


def check_isolation(isolation: str) -> None:
    """Raise unless statements see what was committed before them: a snapshot may be older than the lock of a key."""
    if isolation != "read committed":
        raise ValueError(
            f"This act needs a transaction that is READ COMMITTED, and this one is {isolation.upper()}: its snapshot "
            "may be older than the locks that keep the order of keys."
        )
