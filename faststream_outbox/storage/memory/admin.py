"""What operators do with the rows of the store in memory."""

from collections.abc import Callable, Iterable, Sequence

from faststream_outbox.storage.memory.reads import MemoryReads, letter_of
from faststream_outbox.storage.memory.replay import replay_letters
from faststream_outbox.storage.memory.table import MemoryTable
from faststream_outbox.storage.operating.admin import StoreAdmin
from faststream_outbox.storage.operating.replay import Replayed

__all__ = ["MemoryAdmin", "letter_of"]


class MemoryAdmin(MemoryReads, StoreAdmin):
    """Reads and changes rows in a dict; sessions are ignored."""

    def __init__(self, table: MemoryTable, notify: Callable[[Iterable[str]], None]) -> None:
        super().__init__(table)
        self._notify = notify

    def replay(self, session: object, letter_ids: Iterable[int]) -> Replayed:
        """Put dead letters back into the outbox."""
        del session
        result, queues = replay_letters(self._table, letter_ids)
        self._notify(queues)
        return result

    def prepare_replay(self, session: object) -> None:
        """Do nothing: there are no plans and no locks."""

    def read_letter_keys(self, session: object, letter_ids: Sequence[int]) -> list[tuple[int, str, str | None]]:
        """Return the id, the queue and the key of each of these dead letters that is there, by their ids."""
        del session
        wanted = set(letter_ids)
        return [(dead.id, dead.row.queue, dead.row.entity_key) for dead in self._table.dead if dead.id in wanted]

    def edit_message(self, session: object, message_id: int, payload: bytes, headers_json: str | None) -> None:
        """Replace the payload and the headers of a message."""
        del session
        row = self._table.rows[message_id]
        row.payload, row.headers_json = payload, headers_json
