"""The contract of what operators do with many rows at once: find them in slices, act on a slice, write the audit."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Table

from faststream_outbox.storage.operating.admin import DeadLetterRow
from faststream_outbox.storage.operating.filters import DeadLetterFilter, MessageFilter
from faststream_outbox.storage.operating.reads import Kind

RowFilter = MessageFilter | DeadLetterFilter

# Where a walk goes on: strings and numbers, as JSON can hold them.
WalkPosition = tuple[str | int, ...]

# How many rows one statement of a walk compares with a filter at most.
EXAMINED: Final = 20_000

# Why an act left out a row.
GONE: Final = "it is gone: handled, discarded, or never there"
IN_FLIGHT: Final = "a process is handling it"
KEY_IN_FLIGHT: Final = "a process is handling messages of its key"
LOCKED: Final = "another transaction is changing it"
OTHER: Final = "it is no longer as the selection says"
HOLDS_KEY: Final = "it holds its key: release the key"
PUBLISHING: Final = "an open transaction has published for its key, or for another key that shares its lock"
TIMER_WAITS: Final = "a timer of the same name waits in that queue"
ALREADY_THERE: Final = "it is in that queue already"
AFTER_LEFT: Final = "a message before it, of the same key, was left out"
# Why a row in a state is not made due.
WHY_NOT_NOW: Final[Mapping[str, str]] = {
    "ready": "it is due already; if it is blocked, act on its key",
    "parked": "its key is parked: retry or release the key",
    "in_flight": IN_FLIGHT,
    "expired": "its lease ran out: it comes back by itself",
}

# Queues and keys, each with the lowest id that an act has left there.
Keys = dict[tuple[str, str], int]


class Walked(NamedTuple):
    """The ids that a walk found, in its order, and where it goes on; None at the end."""

    ids: list[int]
    after: WalkPosition | None


@dataclass(slots=True)
class Acted:
    """What an act did with one slice: how many rows it changed, and why it left out others, by their ids.

    `queues` have rows to claim now: their subscribers are woken.
    """

    done: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of the audit table; `at` is epoch seconds."""

    id: int
    at: float
    by: str
    action: str
    reason: str
    target: dict[str, Any]
    count: int


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Entries of the audit that have all that is given here.

    Attributes:
        by: Who did it.
        action: What was done, such as `"discard"`.
        queue: The queue that it was done to, or whose key, timer or selection. Acts on rows by their ids name none.
        after: At this time or later; with a time zone.
        before: Before this time; with a time zone.

    Example:
        AuditFilter(queue="orders", action="discard")

    """

    by: str | None = None
    action: str | None = None
    queue: str | None = None
    after: datetime | None = None
    before: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("after", "before"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
                raise ValueError(f"{name} is a datetime with a time zone, not {value!r}: use datetime.now(UTC).")

    def given(self) -> dict[str, Any]:
        """Return the names and values that were given; times as epoch seconds."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value.timestamp() if isinstance(value, datetime) else value
            for name, value in values.items()
            if value is not None
        }


class StoreActs(ABC):
    """What operators do with many rows, on the synchronous session of a transaction; `Store.run` calls it."""

    # Whether the audit is kept in a table that the caller gives.
    audit_needs_table = True

    @abstractmethod
    def prepare(self, session: Any) -> None:
        """Prepare a transaction of our own: its plans do not depend on how large a table was when they were made."""

    @abstractmethod
    def upper_id(self, session: Any, kind: Kind) -> int:
        """Return the highest id that the table has; 0 if it is empty."""

    @abstractmethod
    def walk(
        self, session: Any, kind: Kind, where: RowFilter, *, upper_id: int, after: WalkPosition | None, limit: int
    ) -> Walked:
        """Return the next ids, up to `upper_id`, of rows that match; `after` is where the walk before ended.

        One call compares at most `EXAMINED` rows: fewer ids than `limit`, even none, are not the end if it goes on.
        """

    @abstractmethod
    def read_dead_letters(self, session: Any, ids: Sequence[int]) -> list[DeadLetterRow]:
        """Return rows of the dead-letter table, by their ids in this order."""

    @abstractmethod
    def deliver_now(self, session: Any, ids: Sequence[int], where: MessageFilter | None) -> Acted:
        """Make rows due that wait for a time."""

    @abstractmethod
    def discard(self, session: Any, ids: Sequence[int], where: MessageFilter | None) -> Acted:
        """Delete rows that no process handles."""

    @abstractmethod
    def move(self, session: Any, ids: Sequence[int], where: MessageFilter | None, queue: str, left: Keys) -> Acted:
        """Move rows to another queue; `left` has the keys of which rows stayed, over all slices of the act."""

    @abstractmethod
    def hold_key(self, session: Any, queue: str, key: str, reason: str) -> tuple[bool, int | None]:
        """Keep later messages of a key from being handled; return whether that was tried, and the row that does it.

        Not tried means: a transaction that publishes for the key is open. No row: the key is parked already.
        """

    @abstractmethod
    def drop_holds(self, session: Any, queue: str, key: str) -> list[int]:
        """Delete the rows that hold a key and are no messages; return their ids."""

    @abstractmethod
    def purge(self, session: Any, ids: Sequence[int], where: DeadLetterFilter | None) -> Acted:
        """Delete dead letters that (still) match."""

    @abstractmethod
    def notify(self, session: Any, queues: Sequence[str]) -> None:
        """Notify the subscribers of these queues with the commit."""

    @abstractmethod
    def add_audit(
        self, session: Any, table: Table | None, *, by: str, action: str, reason: str, target: Any, count: int
    ) -> int | None:
        """Insert one row of the audit and return its id; None if there is no table."""

    @abstractmethod
    def raise_audit(self, session: Any, table: Table | None, audit_id: int, count: int) -> None:
        """Add to the count of a row of the audit."""

    @abstractmethod
    def read_audit(
        self, session: Any, table: Table | None, where: AuditFilter, *, before_id: int | None, limit: int
    ) -> tuple[list[AuditRow], int | None]:
        """Return the entries that match, the newest first, and the id before which to go on; None at the end."""
