"""Where a claimer continues in its queues: how many rows it asks of each, and after which dead index entries."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.rows import OutboxRow, Position

BEGINNING: Final[Position] = (-math.inf, -(2**63))
END: Final[Position] = (math.inf, 2**63 - 1)

# A sweep reads the dead index entries at the front of a queue. It may take a twentieth of the time.
SWEEP_SHARE: Final = 20
# The longest that a late commit or an expired lease waits for a sweep, however slow sweeps are.
MAX_SWEEP_INTERVAL: Final = 30.0


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """What one claim asks, queue by queue in this order; queue i gives at most `quotas[i]` rows."""

    queues: tuple[str, ...]
    quotas: tuple[int, ...]
    starts: tuple[Position, ...]
    limit: int
    sweep: bool


class ClaimCursor:
    """What one claimer remembers between its claims. Only speed and fairness depend on it.

    *Fairness*: a queue that gave all rows it was asked for is busy. Busy queues share the limit, the others are asked
    first and for their equal share; among equals the one that waited longest comes first. Neither a bulk queue nor
    forty small ones starve another.

    *Watermark*: a claim starts at the smallest position of the one before, after the index entries of deleted rows.
    While a transaction holds an old snapshot these cannot be removed, and reading them in each claim would cost more
    with each row. A row that appears below the mark (a late commit, a released row) is found by a sweep.

    Args:
        queues: The names of the queues to claim from.

    """

    def __init__(self, queues: Iterable[str]) -> None:
        if isinstance(queues, str):
            raise TypeError(f"queues is a list of names: [{queues!r}].")
        self.queues = tuple(dict.fromkeys(check_name("queue", queue) for queue in queues))
        if not self.queues:
            raise ValueError("A claim needs at least one queue.")
        # The queues that are left out, unless all of them are.
        self.paused: frozenset[str] = frozenset()
        self._busy: set[str] = set()
        self.marks = dict.fromkeys(self.queues, BEGINNING)
        # How far claims have come in each queue: every row that any process has claimed lies before that, or before the
        # end of the queue when a claim found nothing more.
        self.reach = dict.fromkeys(self.queues, BEGINNING)
        self._waiting = list(self.queues)  # the queue that waited longest first
        self._sweep_at = -math.inf
        self._sweep_took = math.inf
        self._swept = False

    def sweep_in(self, now: float) -> float | None:
        """Return in how many seconds to sweep for rows below the marks; None if the last claim was a sweep."""
        return None if self._swept else max(0.0, self._sweep_at - now)

    @property
    def starts(self) -> dict[str, Position]:
        """Where the next claim starts in each queue that is not paused."""
        return {queue: mark for queue, mark in self.marks.items() if queue not in self.paused} or self.marks

    @property
    def ends(self) -> dict[str, Position]:
        """How far claims have come in each queue that is not paused."""
        return {queue: end for queue, end in self.reach.items() if queue not in self.paused}

    def plan(self, limit: int, now: float) -> ClaimPlan:
        """Return what to ask of each queue; `now` is the clock of leases."""
        asked = [queue for queue in self._waiting if queue not in self.paused] or self._waiting
        order = sorted(asked, key=self._busy.__contains__)  # stable: the queue that waited longest stays first
        quiet_share = math.ceil(limit / len(order))
        busy_share = math.ceil(limit / max(1, len(self._busy)))
        sweep = now >= self._sweep_at
        return ClaimPlan(
            queues=tuple(order),
            quotas=tuple(busy_share if queue in self._busy else quiet_share for queue in order),
            starts=tuple(BEGINNING if sweep else self.marks[queue] for queue in order),
            limit=limit,
            sweep=sweep,
        )

    def record(
        self, plan: ClaimPlan, rows: Sequence[OutboxRow], *, began: float, ended: float, cut: bool = False
    ) -> bool:
        """Record the rows of a claim, in the order of positions; return whether more are likely to be there.

        `cut` says that rows were left out because those before them had too many bytes.
        """
        taken = Counter(row.queue for row in rows)
        self._note_positions(rows)
        left = plan.limit if not cut else len(rows)
        for queue, quota in zip(plan.queues, plan.quotas, strict=True):
            if left <= 0:
                break  # it was not asked: what is known of it stays
            left -= taken[queue]
            if taken[queue] >= quota:
                self._busy.add(queue)
            elif left > 0:
                self._busy.discard(queue)
                self.reach[queue] = END
        self._waiting.sort(key=taken.__contains__)
        self._swept = plan.sweep
        if plan.sweep:
            self._put_off_sweep(began, ended)
        return (
            cut
            or len(rows) >= plan.limit
            or any(taken[queue] >= quota for queue, quota in zip(plan.queues, plan.quotas, strict=True))
        )

    def abandon(self, plan: ClaimPlan, *, began: float, ended: float) -> None:
        """Record that a claim failed; if it was a sweep, perhaps because sweeps are too slow."""
        if plan.sweep:
            self._put_off_sweep(began, ended)

    def _note_positions(self, rows: Sequence[OutboxRow]) -> None:
        first, last = dict[str, OutboxRow](), dict[str, OutboxRow]()
        for row in rows:
            first.setdefault(row.queue, row)
            last[row.queue] = row
        for queue, row in last.items():
            self.marks[queue] = first[queue].position
            reach = self.reach[queue]
            self.reach[queue] = row.position if reach == END else max(reach, row.position)

    def _put_off_sweep(self, began: float, ended: float) -> None:
        took = ended - began
        # The faster of the last two: one slow sweep must not delay the next.
        self._sweep_at = ended + min(SWEEP_SHARE * min(took, self._sweep_took), MAX_SWEEP_INTERVAL)
        self._sweep_took = took

    def restart(self) -> None:
        """Forget the marks: the next claim sweeps."""
        self._sweep_at = -math.inf
