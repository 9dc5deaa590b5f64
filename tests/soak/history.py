"""What happened, as each process saw it: one line an event, readable after any kind of death.

An operation leaves a line before it is sent and one after it was answered. A process that is killed in between leaves
the first alone, and the checker then counts with both: it may have worked, it may not have.
"""

import json
import os
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from faststream_outbox.storage.clock import lease_now

# What a worker does with a lease. All but `renew` end it.
Verb = Literal["ack", "retry", "dead", "renew", "release"]


class Ask(NamedTuple):
    """One lease and what is asked for it; `seconds` is the delay of a retry or the length of a renewal."""

    uid: str
    token: str
    verb: Verb
    seconds: float = 0.0


class ClaimedRow(NamedTuple):
    """A row as a claim brought it; epochs are the database's clock."""

    uid: str
    row_id: int
    token: str
    deliveries: int
    acquired_epoch: float
    lease_epoch: float


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at `t`, on the clock of leases, which all processes of the machine share."""

    t: float


@dataclass(frozen=True, slots=True)
class Inserted(Event):
    """A row is in an open transaction, whose first statement was sent at `began` or later."""

    tx: str
    uid: str
    row_id: int
    began: float
    delay: float
    timer_id: str | None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """A timer was not inserted, because one of its name waits."""

    asked: float
    timer_id: str


@dataclass(frozen=True, slots=True)
class Cancelled(Event):
    """A cancel that answered True, in an open transaction."""

    tx: str
    asked: float
    uid: str


@dataclass(frozen=True, slots=True)
class Committing(Event):
    """A commit is about to be sent: from here on the transaction's rows may be delivered."""

    tx: str


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """A commit was answered."""

    tx: str


@dataclass(frozen=True, slots=True)
class RolledBack(Event):
    """A rollback is about to be sent; no commit will be."""

    tx: str


@dataclass(frozen=True, slots=True)
class Claiming(Event):
    """A claim is about to be sent."""

    call: str
    suspect: bool
    lease_seconds: float


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """A claim was answered."""

    call: str
    expires_at: float
    rows: list[ClaimedRow]


@dataclass(frozen=True, slots=True)
class Sure(Event):
    """A node saw its lock: until then others take none of the rows that it has claimed since `owned_since`."""

    node: str
    until: float
    owned_since: float


@dataclass(frozen=True, slots=True)
class Started(Event):
    """A handler begins; or, in a call with several messages, comes to one that is `behind` others."""

    uid: str
    token: str
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """A handler is done, well or not."""

    uid: str
    token: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """A settle, renewal or release is about to be sent."""

    call: str
    asks: list[Ask]


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """It was answered: what is not `held` was refused, unless the answer is not `complete`: then that is not known."""

    call: str
    held: list[tuple[str, str]]
    complete: bool


@dataclass(frozen=True, slots=True)
class Replaying(Event):
    """Dead letters that were there are about to be replayed."""

    call: str
    uids: list[str]


@dataclass(frozen=True, slots=True)
class Replayed(Event):
    """A replay was answered: these are back in the outbox."""

    call: str
    uids: list[str]


@dataclass(frozen=True, slots=True)
class Arrived(Event):
    """A message was found on a server that rows are relayed to: the `number`-th there, dated `at` by the server."""

    number: int
    at: float
    partition: str
    uid: str
    outbox_id: str
    key: str | None
    sequence: int | None


@dataclass(frozen=True, slots=True)
class Trouble(Event):
    """A connection was lost, as connections are in a soak."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Crashed(Event):
    """A process, or the store, did what no fault explains."""

    text: str


_KINDS = {
    kind.__name__: kind
    for kind in (
        *(Inserted, Refused, Cancelled, Committing, Committed, RolledBack),
        *(Claiming, Claimed, Sure, Started, Ended, Asked, Answered, Replaying, Replayed, Arrived, Trouble, Crashed),
    )
}
_E = TypeVar("_E", bound=Event)


def encode(event: Event) -> bytes:
    """Write an event as a line."""
    values = [getattr(event, field.name) for field in fields(event)]
    return json.dumps([type(event).__name__, *values], separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Event:
    """Read a line back."""
    name, *values = json.loads(line)
    match name:
        case "Claimed":
            values[-1] = [ClaimedRow(*row) for row in values[-1]]
        case "Asked":
            values[-1] = [Ask(*ask) for ask in values[-1]]
        case "Answered":
            values[2] = [(uid, token) for uid, token in values[2]]
    event: Event = _KINDS[name](*values)
    return event


class HistoryWriter:
    """The file of one process. What was written outlives a SIGKILL: it is with the kernel when `write` returns."""

    def __init__(self, directory: Path, process: str) -> None:
        self._descriptor = os.open(directory / process, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = process
        self._numbers = count(1)

    def write(self, kind: type[_E], *values: Any) -> _E:
        """Add an event that happens now."""
        event = kind(lease_now(), *values)
        os.write(self._descriptor, encode(event))
        return event

    def new_name(self) -> str:
        """Name a row, a call or a transaction as nobody else does."""
        return f"{self._process}.{next(self._numbers)}"

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


class HistoryReader:
    """Reads the files of all processes while they grow."""

    def __init__(self, directory: Path) -> None:
        self.events: list[Event] = []
        self._directory = directory
        self._read: dict[Path, int] = {}

    def poll(self) -> list[Event]:
        """Return the events that came since the last poll; a line without its end is left for later."""
        new: list[Event] = []
        for path in sorted(self._directory.iterdir()):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            new.extend(map(decode, whole.splitlines()))
        self.events.extend(new)
        return new
