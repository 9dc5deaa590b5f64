"""A row to insert (`NewRow`), a row that was read (`OutboxRow`), and the right to settle it (`Lease`)."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, overload
from uuid import UUID

from faststream_outbox.storage.checks import check_name, check_payload, check_schedule, encode_headers
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.parking import strip_cause

# Parsed headers up to this length are cached, because other rows may have the same.
_SHORT: Final = 1024

# When a row is due, as epoch seconds, and its id.
Position = tuple[float, int]


@dataclass(slots=True)
class NewRow:
    """A message to insert; raises for a value that Postgres would refuse.

    Args:
        queue: The name of the queue.
        payload: The encoded body.
        headers: Names with values that JSON can hold.
        key: Messages with the same key are delivered in the order of their commits, one at a time.
        timer_id: A name that at most one waiting message of the queue has.
        activate_in: The delay before the message is delivered.
        activate_at: The time at which the message is delivered; with a time zone.

    Example:
        NewRow(
            "orders",
            b'{"id": 1}',
            headers={"content-type": "application/json"},
            activate_in=timedelta(minutes=5),
        )

    """

    queue: str
    payload: bytes
    headers: InitVar[Mapping[str, Any] | None] = None
    key: str | None = None
    timer_id: str | None = None
    activate_in: InitVar[timedelta | None] = None
    activate_at: InitVar[datetime | None] = None
    headers_json: str | None = field(init=False)
    delay_seconds: float | None = field(init=False)
    due_epoch: float | None = field(init=False)

    def __post_init__(
        self, headers: Mapping[str, Any] | None, activate_in: timedelta | None, activate_at: datetime | None
    ) -> None:
        check_name("queue", self.queue)
        if self.key is not None:
            check_name("key", self.key)
        if self.timer_id is not None:
            check_name("timer_id", self.timer_id)
        self.payload = check_payload(self.payload)
        self.headers_json = encode_headers(headers)
        self.delay_seconds, self.due_epoch = check_schedule(activate_in, activate_at)

    @property
    def size(self) -> int:
        """How many bytes the payload and the headers have, about."""
        headers = self.headers_json
        return len(self.payload) + (0 if headers is None else len(headers))

    @classmethod
    def plain(cls, queue: str, payload: bytes, headers_json: str | None, key: str | None) -> "NewRow":
        """Return a row that is due now, with headers that were checked and encoded already."""
        row = object.__new__(cls)
        row.queue = check_name("queue", queue)
        row.payload = check_payload(payload)
        row.key = None if key is None else check_name("key", key)
        row.headers_json = headers_json
        row.timer_id = row.delay_seconds = row.due_epoch = None
        return row

    def beside(self, payload: bytes, key: str | None = None) -> "NewRow":
        """Return a row with another payload and key; the rest was checked and encoded already."""
        row = object.__new__(NewRow)
        row.queue = self.queue
        row.payload = check_payload(payload)
        row.key = None if key is None else check_name("key", key)
        row.timer_id = self.timer_id
        row.headers_json = self.headers_json
        row.delay_seconds = self.delay_seconds
        row.due_epoch = self.due_epoch
        return row


class AlikeRows(Sequence[NewRow]):
    """Rows, at least one, without keys, that differ only in their payloads: they are checked and kept once."""

    def __init__(self, first: NewRow, payloads: Sequence[bytes]) -> None:
        self.first = first
        self.payloads = [check_payload(payload) for payload in payloads]

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> NewRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[NewRow]: ...

    def __getitem__(self, index: int | slice) -> NewRow | list[NewRow]:
        if isinstance(index, slice):
            return [self.first.beside(payload) for payload in self.payloads[index]]
        return self.first.beside(self.payloads[index])


def payloads_of(rows: Sequence[NewRow]) -> Sequence[bytes]:
    """Return the payloads of rows."""
    return rows.payloads if isinstance(rows, AlikeRows) else [row.payload for row in rows]


def are_alike(rows: Sequence[NewRow]) -> bool:
    """Return whether rows, at least one, differ only in their payloads and have no keys."""
    if isinstance(rows, AlikeRows):
        return True
    first = rows[0]
    queue, headers, delay, due = first.queue, first.headers_json, first.delay_seconds, first.due_epoch
    return all(
        row.key is None
        and row.headers_json == headers
        and row.queue == queue
        and row.delay_seconds == delay
        and row.due_epoch == due
        for row in rows
    )


class Lease(NamedTuple):
    """One claim of one row: only the process that knows the token may settle it."""

    row_id: int
    token: UUID

    def __hash__(self) -> int:
        # Hashing a UUID is slow, and two leases of one row are rare.
        return hash(self.row_id)


@dataclass(slots=True)
class OutboxRow:
    """A row as the database has it. Times are numbers, and headers stay text until they are read.

    Times are numbers because Postgres has instants that `datetime` has not (`-infinity`, years before Christ), and one
    of them would make the driver fail the whole batch.

    Attributes:
        id: The id of the row.
        queue: The name of the queue.
        entity_key: The key, if it has one.
        payload: The encoded body.
        headers_json: The headers as text; `headers` has them as a dict.
        timer_id: The name of the timer, if it is one.
        created_epoch: When it was published.
        next_attempt_epoch: When it is due.
        acquired_epoch: When it was claimed.
        acquired_token: The token of the claim; None while the row is free.
        lease_expires_epoch: When others may claim it.
        attempts_count: How often its handler failed.
        deliveries_count: How often it was claimed.
        first_attempt_epoch: When its handler first failed.
        last_attempt_epoch: When its handler failed last.

    """

    id: int
    queue: str
    entity_key: str | None
    payload: bytes
    headers_json: str | None
    timer_id: str | None
    created_epoch: float
    next_attempt_epoch: float
    acquired_epoch: float | None = None
    acquired_token: UUID | None = None
    lease_expires_epoch: float = -math.inf
    attempts_count: int = 0
    deliveries_count: int = 0
    first_attempt_epoch: float | None = None
    last_attempt_epoch: float | None = None
    # True if the lease of an earlier claim ran out: the row may have killed the process.
    suspect: bool = False
    # By the clock of leases: when the claim was sent (0 for a row that was only read), and until when no other process
    # can claim the row. By the monotonic clock: when its handler began and ended.
    claimed_at: float = field(default=0.0, compare=False)
    held_until: float = field(default=0.0, compare=False, repr=False)
    began_at: float | None = field(default=None, compare=False, repr=False)
    ended_at: float | None = field(default=None, compare=False, repr=False)
    # The rows of the same key behind it that its lease covers, in their order.
    followers: Sequence["OutboxRow"] = field(default=(), compare=False, repr=False)
    # How many bytes its answers have, which are in memory until the row is settled.
    output_bytes: int = field(default=0, compare=False, repr=False)
    _lease: Lease | None = field(default=None, compare=False, repr=False)

    @property
    def position(self) -> Position:
        """The row's place in the order in which its queue is claimed."""
        return self.next_attempt_epoch, self.id

    @property
    def lease(self) -> Lease:
        """The lease under which the row was claimed."""
        lease, token = self._lease, self.acquired_token
        if lease is None or lease.token is not token:
            if token is None:
                raise ValueError(f"Row {self.id} is not claimed.")
            lease = self._lease = Lease(self.id, token)
        return lease

    @property
    def size(self) -> int:
        """How many bytes the payload and the headers have, about."""
        headers = self.headers_json
        return len(self.payload) + (0 if headers is None else len(headers))

    @property
    def ordered(self) -> bool:
        """Whether the row has a key, and with it a place in an order."""
        return self.entity_key is not None

    @property
    def parts(self) -> list["OutboxRow"]:
        """The row and those that its lease covers."""
        return [self, *self.followers]

    @property
    def surely_ours(self) -> bool:
        """Whether this process holds the row and no other process can claim it yet."""
        return lease_now() < self.held_until

    @property
    def dispatched(self) -> bool:
        """Whether a handler was started for the row."""
        return self.began_at is not None

    @property
    def duration(self) -> float:
        """For how many seconds its handler has run."""
        if self.began_at is None:
            return 0.0
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.began_at

    def database_now(self) -> datetime:
        """Return the time by the database's clock without a query; this process's wall clock may be wrong.

        It is ahead by the time that the claim took to reach the database.
        """
        if self.acquired_epoch is None or not self.claimed_at:
            raise ValueError(f"Row {self.id} was not claimed by this process, so the database's time is unknown.")
        return to_datetime(self.acquired_epoch + lease_now() - self.claimed_at)

    @property
    def headers(self) -> dict[str, Any] | None:
        """The headers, as they were published; raises `ValueError` if the stored value is no JSON object."""
        text = self.headers_json
        if text is None:
            return None
        plain = _read_plain_headers(text) if len(text) <= _SHORT else None
        headers = strip_cause(json.loads(text)) if plain is None else plain.copy()
        if headers is not None and not isinstance(headers, dict):
            raise ValueError(f"The headers of row {self.id} are no JSON object: {text[:60]}")
        return headers

    @property
    def created_at(self) -> datetime:
        """When the publishing transaction began."""
        return to_datetime(self.created_epoch)

    @property
    def next_attempt_at(self) -> datetime:
        """When the row is, or was, due."""
        return to_datetime(self.next_attempt_epoch)

    @property
    def acquired_at(self) -> datetime | None:
        """When the row was claimed, by the database's clock."""
        return None if self.acquired_epoch is None else to_datetime(self.acquired_epoch)

    @property
    def lease_expires_at(self) -> datetime:
        """When others may claim the row, by the database's clock; `datetime.min` if there is no lease."""
        return to_datetime(self.lease_expires_epoch)

    @property
    def first_attempt_at(self) -> datetime | None:
        """When a handler first failed on the row."""
        return None if self.first_attempt_epoch is None else to_datetime(self.first_attempt_epoch)

    @property
    def last_attempt_at(self) -> datetime | None:
        """When a handler last failed on the row."""
        return None if self.last_attempt_epoch is None else to_datetime(self.last_attempt_epoch)


@lru_cache(maxsize=64)
def _read_plain_headers(text: str) -> dict[str, Any] | None:
    """Return headers that have only plain values: most rows have the same headers, and a shallow copy will do."""
    headers = strip_cause(json.loads(text))
    plain = isinstance(headers, dict) and not any(isinstance(value, dict | list) for value in headers.values())
    return headers if plain else None


def to_datetime(epoch: float) -> datetime:
    """Return epoch seconds as a `datetime`; outside its calendar, as its first or last instant."""
    try:
        return datetime.fromtimestamp(epoch, UTC)
    except (OverflowError, ValueError):
        return (datetime.max if epoch > 0 else datetime.min).replace(tzinfo=UTC)  # noqa: DTZ901 - the ends are meant
