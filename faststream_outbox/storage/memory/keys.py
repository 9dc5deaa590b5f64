"""What operators ask of keys, and do with them, in memory."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from faststream_outbox.storage.ordering.actions import KeyAction, ParkKey, ReleaseKey, RetryKey, SkipKey
from faststream_outbox.storage.ordering.states import KeyState, state_of
from faststream_outbox.storage.outcomes import Dead
from faststream_outbox.storage.parking import BY_OPERATOR, Cause, cause_in, with_cause, without_cause
from faststream_outbox.storage.rows import OutboxRow

if TYPE_CHECKING:
    from faststream_outbox.storage.memory.store import MemoryStore

_NO_LEASE: Final = float("-inf")


class MemoryKeys:
    """The keys of a `MemoryStore`, as operators use them."""

    def __init__(self, store: "MemoryStore") -> None:
        self._store = store

    def read(self, *, queue: str | None, states: Sequence[str], limit: int) -> list[KeyState]:
        """Describe keys in these states."""
        now = self._store.clock()
        found = (
            KeyState.of(rows[0], waiting=len(rows) - 1, now=now)
            for rows in self._keys()
            if queue in (None, rows[0].queue) and state_of(rows[0], now) in states
        )
        return list(islice(found, limit))

    def act(self, queue: str, key: str, action: KeyAction) -> int | None:
        """Do something with the head of a key, unless it is being handled; returns its id."""
        head = next((rows[0] for rows in self._keys() if (rows[0].queue, rows[0].entity_key) == (queue, key)), None)
        now = self._store.clock()
        if head is None or state_of(head, now) == "in_flight":
            return None
        parked = head.next_attempt_epoch == math.inf
        match action:
            case RetryKey():
                self._retry(head, now, parked=parked)
            case ReleaseKey() if parked:
                self._release(head, now)
            case ParkKey(reason) if not parked:
                head.headers_json = with_cause(
                    head.headers_json, Cause(BY_OPERATOR, reason, now, head.next_attempt_epoch)
                )
                head.acquired_token, head.acquired_epoch, head.lease_expires_epoch = None, None, _NO_LEASE
                head.next_attempt_epoch = math.inf
            case SkipKey(reason):
                cause = str(cause_in(head.headers_json))
                self._store.bury(head, Dead("rejected", f"{reason}\n\nparked for {cause}" if cause else reason))
            case _:
                return None
        return head.id

    @staticmethod
    def _retry(head: OutboxRow, now: float, *, parked: bool) -> None:
        _disown(head)
        head.next_attempt_epoch = min(head.next_attempt_epoch, now)
        head.headers_json = without_cause(head.headers_json)
        if parked:
            head.attempts_count = head.deliveries_count = 0
            head.first_attempt_epoch = head.last_attempt_epoch = None

    @staticmethod
    def _release(head: OutboxRow, now: float) -> None:
        _disown(head)
        due = cause_in(head.headers_json).due
        head.next_attempt_epoch = now if due is None else due
        head.headers_json = without_cause(head.headers_json)
        head.deliveries_count = 0

    def _keys(self) -> Iterator[list[OutboxRow]]:
        keyed = [row for row in self._store.rows.values() if row.entity_key is not None]
        keyed.sort(key=lambda row: (row.queue, row.entity_key, row.id))
        for _, rows in groupby(keyed, key=lambda row: (row.queue, row.entity_key)):
            yield list(rows)


def _disown(head: OutboxRow) -> None:
    """Give a suspect another token, so that whoever had it cannot settle it any more."""
    if head.acquired_token is not None:
        head.acquired_token = uuid4()
