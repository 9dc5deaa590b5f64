"""What operators do with the rows of the Postgres store."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Table

from faststream_outbox.storage.operating.admin import StoreAdmin
from faststream_outbox.storage.operating.replay import Replayed
from faststream_outbox.storage.postgres.drivers import SET_LOCAL
from faststream_outbox.storage.postgres.reads.execute import Execute
from faststream_outbox.storage.postgres.reads.queues import PostgresReads
from faststream_outbox.storage.postgres.replay import PostgresReplay
from faststream_outbox.storage.postgres.statements.replay import LIMIT_WAITS
from faststream_outbox.storage.postgres.statements.statement import Statement

__all__ = ["Execute", "PostgresAdmin"]

# One statement for both, because a replay runs it for each slice.
_PREPARE: Final = Statement(f"{SET_LOCAL.sql}, {LIMIT_WAITS}")


class PostgresAdmin(PostgresReads, StoreAdmin):
    """Reads and changes rows by statements on the session that is given."""

    def __init__(self, execute: Execute, outbox: Table, dlq: Table | None, nodes: Table | None = None) -> None:
        super().__init__(execute, outbox, dlq, nodes)
        self._replay = None if dlq is None else PostgresReplay(execute, outbox, dlq)

    def replay(self, session: Any, letter_ids: Iterable[int]) -> Replayed:
        """Put dead letters back into the outbox."""
        if self._replay is None:
            return Replayed(skipped=dict.fromkeys(letter_ids, "gone"))
        return self._replay.replay(session, letter_ids)

    def prepare_replay(self, session: Any) -> None:
        """Make the plans of this transaction those of the store's own connections, and limit its waits."""
        self._execute(session, _PREPARE)

    def read_letter_keys(self, session: Any, letter_ids: Sequence[int]) -> list[tuple[int, str, str | None]]:
        """Return the id, the queue and the key of each of these dead letters that is there, by their ids."""
        return [] if self._replay is None else self._replay.read_keys(session, letter_ids)

    def edit_message(self, session: Any, message_id: int, payload: bytes, headers_json: str | None) -> None:
        """Replace the payload and the headers of a message that this transaction has put back."""
        if self._replay is not None:
            self._replay.edit(session, message_id, payload, headers_json)
