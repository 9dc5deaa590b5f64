"""What a key waits for: the state of its head, the first row; and what an operator can do with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from faststream_outbox.storage.checks import check_reason
from faststream_outbox.storage.parking import cause_in
from faststream_outbox.storage.rows import OutboxRow

KeyStateName = Literal["retrying", "delayed", "parked", "expired", "in_flight"]

# In these states a key waits for something other than a subscriber.
BLOCKED: Final[tuple[KeyStateName, ...]] = ("delayed", "expired", "parked", "retrying")

# The state of a row `o` by itself; "ready" is one that can be claimed.
STATE: Final = """CASE WHEN o.acquired_token IS NOT NULL AND o.lease_expires_at > now() THEN 'in_flight'
         WHEN o.acquired_token IS NOT NULL THEN 'expired'
         WHEN o.next_attempt_at <= now() THEN 'ready'
         WHEN o.next_attempt_at = 'infinity' THEN 'parked'
         WHEN o.attempts_count > 0 THEN 'retrying' ELSE 'delayed' END"""


def state_of(row: OutboxRow, now: float) -> KeyStateName | Literal["ready"]:
    """Return the state of a row that was read, by the rules of `STATE`."""
    if row.acquired_token is not None:
        return "in_flight" if row.lease_expires_epoch > now else "expired"
    if row.next_attempt_epoch <= now:
        return "ready"
    if row.next_attempt_epoch == math.inf:
        return "parked"
    return "retrying" if row.attempts_count > 0 else "delayed"


@dataclass(frozen=True, slots=True)
class KeyState:
    """One key that is blocked or in flight, as an operator sees it.

    Attributes:
        queue: The name of the queue.
        key: The key.
        state: The state of its head, the first row: `"retrying"` (it failed, and waits for its retry), `"delayed"` (it
            is not due yet, and has not failed), `"parked"` (it waits for an operator), `"expired"` (its lease ran out)
            or `"in_flight"` (it is being handled).
        cause: Why it is in this state, in one line.
        age: How many seconds ago, by the database's clock, the head was parked, first failed, was published, lost its
            lease or was claimed, by its state.
        waiting: The number of rows behind the head; counting stops at 1,000.
        head_id: The id of the head.
        attempts: How often the head has failed.
        due_in: In how many seconds a subscriber may claim it; None if it is parked or in flight.
        exception: The whole text of the exception that was stored, if there is one.
        waiting_capped: Whether counting stopped: there are more than `waiting` rows behind the head.

    Example:
        for key in await broker.fetch_keys(session=session, queue="orders", state="parked"):
            print(key.key, key.cause, f"{key.waiting} wait behind row {key.head_id}")

    """

    queue: str
    key: str
    state: KeyStateName
    cause: str
    age: float
    waiting: int
    head_id: int
    attempts: int
    due_in: float | None
    exception: str | None = None
    waiting_capped: bool = False

    @classmethod
    def of(cls, head: OutboxRow, *, waiting: int, now: float, waiting_capped: bool = False) -> "KeyState":
        """Return the state of the key with this head."""
        state = state_of(head, now)
        if state == "ready" or head.entity_key is None:
            raise ValueError(f"Row {head.id} is not the head of a key that waits.")
        cause, since = _cause(head, state)
        return cls(
            queue=head.queue,
            key=head.entity_key,
            state=state,
            cause=cause,
            age=max(0.0, now - (head.created_epoch if since is None or math.isinf(since) else since)),
            waiting=waiting,
            head_id=head.id,
            attempts=head.attempts_count,
            due_in=None if state in ("parked", "in_flight") else max(0.0, head.next_attempt_epoch - now),
            exception=cause_in(head.headers_json).exception if state in ("parked", "retrying") else None,
            waiting_capped=waiting_capped,
        )


def _cause(head: OutboxRow, state: KeyStateName) -> tuple[str, float | None]:
    """Return why a key is in its state, and since when."""
    match state:
        case "parked":
            cause = cause_in(head.headers_json)
            return cause.line or "parked by hand", cause.parked_at
        case "retrying":
            times = f"{head.attempts_count} times" if head.attempts_count > 1 else "once"
            last = cause_in(head.headers_json).line
            return f"failed {times}: {last}" if last else f"failed {times}", head.first_attempt_epoch
        case "expired":
            return "its lease ran out: the process that handled it died or hangs", head.lease_expires_epoch
        case "in_flight":
            return "being handled", head.acquired_epoch
        case "delayed":
            return "not due yet", head.created_epoch


def wanted_states(state: object) -> Sequence[str]:
    """Return the states that are asked for: one, or all in which a key is blocked."""
    if state is None:
        return BLOCKED
    if state not in get_args(KeyStateName):
        names = ", ".join(f'"{name}"' for name in get_args(KeyStateName))
        raise ValueError(f"state is one of {names}, or left out for all that are blocked, not {state!r}.")
    return (str(state),)


@dataclass(frozen=True, slots=True)
class RetryKey:
    """Make the head due now; one that was parked starts again, with no attempts counted."""


@dataclass(frozen=True, slots=True)
class ReleaseKey:
    """Return a parked head to its state before: its attempts stay counted, and it is due when it was due."""


@dataclass(frozen=True, slots=True)
class _WithReason:
    reason: str

    def __post_init__(self) -> None:
        check_reason(self.reason)


class ParkKey(_WithReason):
    """Park the head."""


class SkipKey(_WithReason):
    """Dead-letter the head; the key continues with the next row."""


KeyAction = RetryKey | ReleaseKey | ParkKey | SkipKey
