"""Where a claimer stands among the keys of its queues."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from os.path import commonprefix
from typing import Final

from faststream_outbox.storage.ordering.strategies import HeadLease, Ordering, OwnShards

# A key, and an id: what is looked for lies after it.
KeyPosition = tuple[str, int]

BEGINNING: Final[KeyPosition] = ("", -(2**63))
LAST_ID: Final = 2**63 - 1
# Heads that one claim looks at, at most: it takes some milliseconds however many keys there are.
MOST_VISITS: Final = 500


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """One claim's question: which queue, behind which key, and of which shards where there are some."""

    queue: str
    after: KeyPosition
    ordering: Ordering
    shards: tuple[int, ...]


def finite(seconds: float | None) -> float | None:
    """Leave out what is never due: a key that is parked."""
    return None if seconds is None or seconds == math.inf else seconds


class KeyCursor:
    """The memory of one claimer between its claims of runs. Nothing depends on it but speed and fairness.

    It goes round and round through the keys of each queue, so each has its turn, and begins anywhere, so that claimers
    do not meet at the same keys. Those that meet all the same part again: what is behind a claimer is claimed, so the
    next one comes straight to where it is. A queue is at rest when a whole round found nothing to claim.
    """

    def __init__(
        self, queues: Iterable[str], *, ordering: Ordering | None = None, shards: OwnShards | None = None
    ) -> None:
        self.queues = tuple(dict.fromkeys(queues))
        self._ordering = ordering or HeadLease()
        self._shards = shards
        self._rounds = {queue: _Round() for queue in self.queues}
        self._turn = 0

    def plan(self) -> KeyPlan:
        """Choose the queue whose turn it is, and go on there."""
        queue = self.queues[self._turn % len(self.queues)]
        self._turn += 1
        shards = () if self._shards is None else self._shards.of(queue)
        return KeyPlan(queue, self._rounds[queue].at, self._ordering, shards)

    def record(
        self, plan: KeyPlan, *, last: str | None, ended: bool, found: int, next_due: float | None, lost: int = 0
    ) -> bool:
        """Take note of what a claim met, and lost to others; tell whether more is likely to be there, in any queue."""
        self._rounds[plan.queue].record(last=last, ended=ended, found=found, lost=lost, next_due=next_due)
        return not self.at_rest

    def go_to(self, queue: str, after: KeyPosition) -> None:
        """Have the next claim look at that queue, behind that key."""
        self._turn = self.queues.index(queue)
        self._rounds[queue].at = after

    @property
    def at_rest(self) -> bool:
        """Whether a whole round of every queue found nothing."""
        return all(each.at_rest for each in self._rounds.values())

    @property
    def next_due(self) -> float | None:
        """In how many seconds the next run is due, by what the last whole rounds saw."""
        return min((each.next_due for each in self._rounds.values() if each.next_due < math.inf), default=None)

    def restart(self) -> None:
        """Begin new rounds: rows have come, or time has passed."""
        for each in self._rounds.values():
            each.restart()


class _Round:
    """One queue's round: from its first key to its last; before the first one, from anywhere."""

    def __init__(self) -> None:
        # Where the first claim ended, and the last one.
        self._ends: tuple[str, str] | None = None
        self.at = self._anywhere()
        self._whole = False
        self._found = False
        # Whether it has left a place where another claimer was.
        self._parted = False
        self._next_due = self.next_due = math.inf
        self.at_rest = False

    def restart(self) -> None:
        self.at_rest = False

    def record(self, *, last: str | None, ended: bool, found: int, lost: int, next_due: float | None) -> None:
        self._found = self._found or found > 0
        self._next_due = min(self._next_due, math.inf if next_due is None else next_due)
        self._parted = self._parted and not found
        if not ended and last is not None:
            self.at = (last, LAST_ID)
            self._ends = (last if self._ends is None else self._ends[0], last)
            if lost and not found and not self._parted:
                # Once, until something is found: whoever locks keys for longer must not keep us from coming to rest.
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
        return prefix + random.choice("0123456789abcdef"), LAST_ID  # noqa: S311 - nobody's secret
