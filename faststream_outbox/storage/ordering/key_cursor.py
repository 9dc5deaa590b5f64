"""Runs, the first rows of a key, and where a claimer of runs continues among the keys of its queues."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Final

from faststream_outbox.storage.ordering.strategies import HeadLease, Ordering, OwnShards
from faststream_outbox.storage.rows import Lease, OutboxRow

# A key and an id: a claim searches after it.
KeyPosition = tuple[str, int]

BEGINNING: Final[KeyPosition] = ("", -(2**63))
LAST_ID: Final = 2**63 - 1
# The lowest id, as SQL: without quotes Postgres reads it as a number that no bigint can hold.
FIRST_ID: Final = f"'{BEGINNING[1]}'::bigint"
# The most heads that one claim visits: it then takes some milliseconds, however many keys there are.
MOST_VISITS: Final = 500


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """What one claim asks: which queue, after which key, by which strategy, in which shards."""

    queue: str
    after: KeyPosition
    ordering: Ordering
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """The first rows of a key, all of them due; the lease of the head, the first one, covers the others."""

    rows: Sequence[OutboxRow]

    @property
    def lease(self) -> Lease:
        """The lease that covers all of it."""
        return self.rows[0].lease

    @property
    def key(self) -> str | None:
        """The key that the rows have in common."""
        return self.rows[0].entity_key


@dataclass(frozen=True, slots=True)
class RunClaim:
    """What one claim of runs brought, by the plan that it followed.

    `next_due` is in how many seconds the next run is due, among the keys that this claim visited. `suspects` says that
    it found keys whose lease ran out. `lost` counts the keys that were free when it looked, and that another
    claimer, or a program that holds their lock, had first.
    """

    plan: KeyPlan
    runs: list[Run]
    expires_at: float
    more: bool
    next_due: float | None
    suspects: bool
    lost: int = 0


def finite(seconds: float | None) -> float | None:
    """Return the seconds, or None for a key that is never due because it is parked."""
    return None if seconds is None or seconds == math.inf else seconds


class KeyCursor:
    """What one claimer remembers between its claims of runs. Only speed and fairness depend on it.

    It visits the keys of each queue in rounds, so that each has its turn, and begins at a random key, so that claimers
    do not compete for the same keys. If two do, one moves elsewhere: keys behind a claimer are claimed, so the other
    would follow it all the way. A queue is at rest when a whole round found nothing to claim.
    """

    def __init__(
        self, queues: Iterable[str], *, ordering: Ordering | None = None, shards: OwnShards | None = None
    ) -> None:
        self.queues = tuple(dict.fromkeys(queues))
        self._ordering = ordering or HeadLease()
        self._shards = shards
        self._rounds = {queue: _Round() for queue in self.queues}
        self._turn = 0
        # The queues that are left out, unless all of them are.
        self.paused: frozenset[str] = frozenset()

    def plan(self) -> KeyPlan:
        """Choose the next queue that is not at rest, or the next one if all are, and continue there."""
        start = self._turn % len(self.queues)
        turns = range(start, start + len(self.queues))
        by_turn = [self.queues[turn % len(self.queues)] for turn in turns]
        by_turn = [queue for queue in by_turn if queue not in self.paused] or by_turn
        queue = next((each for each in by_turn if not self._rounds[each].at_rest), by_turn[0])
        self._turn = self.queues.index(queue) + 1 if len(self.queues) > 1 else 0
        shards = () if self._shards is None else self._shards.of(queue)
        return KeyPlan(queue, self._rounds[queue].at, self._ordering, shards)

    def record(
        self, plan: KeyPlan, *, last: str | None, ended: bool, found: int, next_due: float | None, lost: int = 0
    ) -> bool:
        """Record what a claim found, and lost to others; return whether any queue is likely to have more."""
        self._rounds[plan.queue].record(last=last, ended=ended, found=found, lost=lost, next_due=next_due)
        return not self.at_rest

    def go_to(self, queue: str, after: KeyPosition) -> None:
        """Move the next claim to that queue, after that key."""
        self._turn = self.queues.index(queue)
        self._rounds[queue].at = after
        self._rounds[queue].at_rest = False

    @property
    def at_rest(self) -> bool:
        """Whether a whole round of every queue found nothing."""
        return all(each.at_rest for queue, each in self._rounds.items() if queue not in self.paused)

    @property
    def next_due(self) -> float | None:
        """In how many seconds the next run is due, by what the last whole rounds saw."""
        claimed = (each for queue, each in self._rounds.items() if queue not in self.paused)
        return min((each.next_due for each in claimed if each.next_due < math.inf), default=None)

    def restart(self) -> None:
        """Begin new rounds: rows have come, or time has passed."""
        for each in self._rounds.values():
            each.at_rest = False

    def unvisited(self) -> list[str]:
        """Return the queues whose rounds are not over."""
        return [queue for queue in self.queues if not self._rounds[queue].at_rest]

    def rest(self, queues: Iterable[str]) -> None:
        """Note that these queues have no rows with a key."""
        for queue in queues:
            self._rounds[queue].at_rest = True
            self._rounds[queue].next_due = math.inf


class _Round:
    """One queue's round, from its first key to its last; the first round begins anywhere."""

    def __init__(self) -> None:
        # Where the first claim ended, and the last one.
        self._ends: tuple[str, str] | None = None
        self.at = self._anywhere()
        self._whole = False
        self._found = False
        # Whether it has moved away from another claimer.
        self._parted = False
        self._next_due = self.next_due = math.inf
        self.at_rest = False

    def record(self, *, last: str | None, ended: bool, found: int, lost: int, next_due: float | None) -> None:
        self._found = self._found or found > 0
        self._next_due = min(self._next_due, math.inf if next_due is None else next_due)
        self._parted = self._parted and not found
        if not ended and last is not None:
            self.at = (last, LAST_ID)
            self._ends = (last if self._ends is None else self._ends[0], last)
            if lost and not found and not self._parted:
                # Once, until something is found: the queue must come to rest even if a program locks keys for long.
                self.at, self._whole, self._parted = self._anywhere(), False, True
            return
        if self._whole:
            self.at_rest = not self._found
            self.next_due = self._next_due
        self.at, self._whole, self._found, self._next_due = BEGINNING, True, False, math.inf

    def _anywhere(self) -> KeyPosition:
        # Most keys are numbers or identifiers of hexadecimal digits, behind a prefix that they have in common.
        first, last = self._ends or ("", "")
        prefix = commonprefix([first, last]) if first != last else ""  # noqa: RUF071 - by characters, as it is meant
        return prefix + random.choice("0123456789abcdef"), LAST_ID  # noqa: S311 - no secret
