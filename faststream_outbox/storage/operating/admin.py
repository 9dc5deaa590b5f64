"""The contract of what operators read and change, beside that of publishers and subscribers."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from faststream_outbox.storage.operating.reads import DeadLetterRow, StoreReads
from faststream_outbox.storage.operating.replay import Replayed

__all__ = ["DeadLetterRow", "StoreAdmin"]


class StoreAdmin(StoreReads):
    """What operators do with rows, on the synchronous session of a transaction; `Store.run` calls it.

    Example:
        found = await store.run(session, store.admin.read_messages, [7])

    """

    @abstractmethod
    def replay(self, session: Any, letter_ids: Iterable[int]) -> Replayed:
        """Put dead letters back into the outbox, due now and with no attempts counted, under their original ids.

        One with a key so comes before all that was published after it. All letters of a call go back together. One is
        skipped if a message of its key is in flight, or if its id or its timer is taken; it stays where it is.
        The commit notifies listeners. Publishers for the keys of these letters wait until then.
        """

    @abstractmethod
    def prepare_replay(self, session: Any) -> None:
        """Prepare a transaction of our own: its plans, and how long it waits for a publisher.

        It fails before the server takes both for deadlocked. It waits only for a timer of the same name whose
        transaction is open.
        """

    @abstractmethod
    def read_letter_keys(self, session: Any, letter_ids: Sequence[int]) -> list[tuple[int, str, str | None]]:
        """Return the id, the queue and the key of each of these dead letters that is there, by their ids."""

    @abstractmethod
    def edit_message(self, session: Any, message_id: int, payload: bytes, headers_json: str | None) -> None:
        """Replace the payload and the headers of a message that this transaction has put back."""
