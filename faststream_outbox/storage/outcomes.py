"""The outcomes of a claimed row (`Ack`, `Retry`, `Dead`, `Park`), and the result of writing them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args

from faststream_outbox.storage.checks import MAX_DELAY
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow

# An exception or, to free the memory of its frames, only its type.
Raised = BaseException | type[BaseException]

FailureReason = Literal["max_deliveries", "retry_terminal", "rejected"]
# What becomes of the key of a dead row: it goes on without the row, or it waits until an operator acts.
OnDead = Literal["skip", "park"]

# Enough for the beginning and the end of a traceback.
MAX_EXCEPTION_BYTES: Final = 8192


@dataclass(frozen=True, slots=True)
class Ack:
    """Handled: the row is deleted, and `outputs` are inserted with it, if and only if the lease still held.

    An output whose timer exists already is not inserted.

    Args:
        outputs: Messages to insert with the deletion.

    """

    outputs: tuple[NewRow, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.outputs, tuple) or not all(isinstance(row, NewRow) for row in self.outputs):
            raise TypeError(f"outputs is a tuple of NewRow(queue, payload, …), not {self.outputs!r}.")


# The outcome of most rows.
HANDLED: Final = Ack()


@dataclass(frozen=True, slots=True)
class Retry:
    """Failed, to be tried again after a delay.

    Args:
        delay_seconds: After how many seconds it is due again, by the database's clock.
        attempts_count: How often it has failed now.
        first_attempt_at: When it first failed; by default the database's `now()`.
        last_attempt_at: When it failed this time; by default the database's `now()`.
        error: What was raised, whose type metrics report; it is not stored.
        batch_size: The number of rows that failed in the same call; it is not stored.
        failure: What failed, in a line, for operators; the row keeps it until it is settled. By default what it has.

    """

    delay_seconds: float
    attempts_count: int
    first_attempt_at: datetime | None = None
    last_attempt_at: datetime | None = None
    error: Raised | None = field(default=None, compare=False, repr=False)
    batch_size: int = field(default=1, compare=False, repr=False)
    failure: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.delay_seconds, bool) or not isinstance(self.delay_seconds, int | float):
            raise TypeError(f"delay_seconds is a number, not {type(self.delay_seconds).__name__}.")
        if isinstance(self.attempts_count, bool) or not isinstance(self.attempts_count, int):
            raise TypeError(f"attempts_count is a whole number, not {type(self.attempts_count).__name__}.")
        _check_times(self)

    @property
    def bounded_delay(self) -> float:
        """The delay as Postgres can add it: a wrong delay of a retry strategy must not prevent the settle."""
        return float(min(max(0.0, self.delay_seconds), MAX_DELAY.total_seconds()))


@dataclass(frozen=True, slots=True)
class Dead:
    """Failed for good: moved to the dead-letter table if there is one, otherwise deleted.

    Counts and times that are None stay as the row has them.

    Args:
        reason: Why: the value of the column `failure_reason`.
        last_exception: The text of the last exception.
        attempts_count: How often the message has failed.
        first_attempt_at: When it first failed.
        last_attempt_at: When it failed last.
        error: The exception itself, whose type metrics report; it is not stored.

    """

    reason: FailureReason
    last_exception: str | None = None
    attempts_count: int | None = None
    first_attempt_at: datetime | None = None
    last_attempt_at: datetime | None = None
    error: Raised | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.reason not in get_args(FailureReason):
            raise ValueError(f"reason is one of {', '.join(get_args(FailureReason))}, not {self.reason!r}.")
        _check_times(self)


@dataclass(frozen=True, slots=True)
class Park:
    """Failed for good, and kept at the head of its key: no row of the key is claimed until an operator acts.

    Only for rows with a key. The row keeps everything that `dead` holds.
    """

    dead: Dead

    def __post_init__(self) -> None:
        if not isinstance(self.dead, Dead):
            raise TypeError(f"Park takes the outcome that it replaces: Park(Dead(…)), not {self.dead!r}.")


Outcome = Ack | Retry | Dead | Park
_OUTCOMES: Final = (Ack, Retry, Dead, Park)


def give_up(row: OutboxRow, dead: Dead, on_dead: OnDead) -> Dead | Park:
    """Return the outcome of a row that failed for good: dead, or parked if it has a key and `on_dead` is "park"."""
    return Park(dead) if on_dead == "park" and row.entity_key is not None else dead


def blocks_its_key(outcome: Outcome) -> bool:
    """Return whether the rows behind this one, of the same key, have to wait for it."""
    return isinstance(outcome, Retry | Park)


def output_bytes(outcome: Outcome) -> int:
    """Return how many bytes the outputs of an outcome have."""
    return sum([row.size for row in outcome.outputs]) if isinstance(outcome, Ack) and outcome.outputs else 0


@dataclass(slots=True)  # not frozen: one is made for every row, and a frozen one takes twice as long to make
class Settlement:
    """The outcome of a claimed row, to be written under its lease.

    Args:
        lease: The lease of the row.
        outcome: `Ack()`, `Retry(…)`, `Dead(…)` or `Park(…)`.
        group: Acknowledgements with the same number are written together, with the outputs of all of them, or not at
            all.
        followers: The lease of a key covers the rows behind its head: those of them that were handled too, in their
            order, each with its row id. A row that is retried or parked ends the list, because it blocks its key.
        committed: None while the outcome has to be written. A handler's own transaction sets it: True if it deleted the
            row, False if it found the lease lost.
        next_head: The row behind those, if its handler is running: the lease passes to it, under the same token.

    """

    lease: Lease
    outcome: Outcome
    group: int | None = None
    followers: Sequence[tuple[int, Outcome]] = ()
    committed: bool | None = None
    next_head: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.outcome, _OUTCOMES):
            raise TypeError(f"An outcome is Ack(), Retry(…), Dead(…) or Park(…), not {self.outcome!r}.")
        if self.group is not None and not isinstance(self.outcome, Ack):
            raise TypeError(f"Only acknowledgements are written in a group, not {self.outcome!r}.")
        if self.followers and any(blocks_its_key(outcome) for _, outcome in self.outcomes[:-1]):
            raise ValueError("A row that is retried or parked blocks its key: no row behind it can be settled.")

    @classmethod
    def of_run(
        cls,
        lease: Lease,
        outcomes: Sequence[tuple[int, Outcome]],
        *,
        committed: bool | None = None,
        next_head: int | None = None,
    ) -> "Settlement":
        """Return the settlement of the first rows of a key, each given by its id and outcome, the head first."""
        if not outcomes or outcomes[0][0] != lease.row_id:
            raise ValueError(f"The outcomes of a run begin with that of its head, row {lease.row_id}.")
        return cls(lease, outcomes[0][1], followers=outcomes[1:], committed=committed, next_head=next_head)

    @property
    def outcomes(self) -> Sequence[tuple[int, Outcome]]:
        """Return the id and the outcome of every row that this settlement writes, the head first."""
        return [(self.lease.row_id, self.outcome), *self.followers]

    @property
    def output_bytes(self) -> int:
        """How many bytes the outputs have that are written with this settlement."""
        if not self.followers:
            return 0 if self.outcome is HANDLED else output_bytes(self.outcome)
        return sum([output_bytes(outcome) for _, outcome in self.outcomes])


@dataclass(slots=True)
class Settled:
    """What a settle did, lease by lease.

    `held`: the outcome was written. `lost`: another process has claimed or settled the row; nothing was written.
    `failed`: the database refused the outcome, with its error; the row is unchanged and the lease still holds.
    """

    held: set[Lease] = field(default_factory=set)
    lost: set[Lease] = field(default_factory=set)
    failed: dict[Lease, Exception] = field(default_factory=dict)


class SettleInterruptedError(Exception):
    """A settle could not be finished; `settled` is what was written before, `__cause__` the error."""

    def __init__(self, settled: Settled) -> None:
        super().__init__(f"The settle was interrupted after {len(settled.held)} rows; the rest is to be tried again.")
        self.settled = settled


def clean_exception_text(text: str | None) -> str | None:
    """Make any text storable: no NUL, no lone surrogate, at most 8 KiB, cut in the middle."""
    if text is None:
        return None
    if len(text) > 2 * MAX_EXCEPTION_BYTES:  # do not encode megabytes to keep kilobytes
        text = text[:MAX_EXCEPTION_BYTES] + text[-MAX_EXCEPTION_BYTES:]
    data = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace")
    if len(data) > MAX_EXCEPTION_BYTES:
        mark = b"\n[...]\n"
        half = (MAX_EXCEPTION_BYTES - len(mark)) // 2
        data = data[:half] + mark + data[-half:]
    return data.decode(errors="ignore")


def epoch_or_none(at: datetime | None) -> float | None:
    """Return an instant as epoch seconds, and None for None."""
    return None if at is None else at.timestamp()


def _check_times(outcome: Retry | Dead) -> None:
    for name in ("first_attempt_at", "last_attempt_at"):
        at = getattr(outcome, name)
        if at is not None and at.utcoffset() is None:
            raise ValueError(f"{name} has no time zone: {at!r}. Use datetime.now(UTC).")
