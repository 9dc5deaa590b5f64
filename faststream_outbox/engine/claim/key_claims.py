"""Claims rows with a key: decides when to look and at how many keys; a queue without keys costs little."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.storage import StoreLane
from faststream_outbox.storage.contract import MAX_BYTES
from faststream_outbox.storage.ordering import KeyCursor, KeyPosition, OwnShards, RunClaim

# While rows without a key are claimed batch after batch, look for keys this often, in seconds; and the other way round.
LOOK_EVERY: Final = 0.05
# How many places with suspects to remember (claims meet the others again), and at how many to look at a time.
_MOST_PLACES: Final = 100
_LOOKS: Final = 10
# With more queues than this, one statement finds those that have keys at all, so an idle look costs the same for all.
_FEW_QUEUES: Final = 3
# How long runs are believed to be at first: a claim locks heads that it then has no room for if they are longer, and
# brings few rows if they are shorter.
_FIRST_LENGTH: Final = 4.0
# The weight of one claim in the moving average of run lengths.
_WEIGHT: Final = 0.2


class KeyClaims:
    """Claims runs of rows with a key, and remembers after which key to continue.

    It also remembers where it met keys whose lease ran out; `claim_suspect` looks only there.

    Args:
        queues: The queues whose keys are claimed, in turn.
        options: The strategy, and how long a lease lasts.
        rows_per_key: How many rows of a key come together at most.
        shards: The shards of this process, if the strategy has any.
        on_lost: Called with a queue and the number of its keys that a claim lost to other claimers.

    """

    def __init__(
        self,
        queues: Sequence[str],
        options: SubscriberOptions,
        *,
        rows_per_key: int,
        shards: OwnShards | None = None,
        on_lost: Callable[[str, int], None] | None = None,
    ) -> None:
        self._fresh = KeyCursor(queues, ordering=options.ordering, shards=shards)
        self._suspects = KeyCursor(queues, ordering=options.ordering, shards=shards)
        self._rows_per_key = rows_per_key
        self._lease_seconds = options.lease_ttl_seconds
        self._on_lost = on_lost
        # Whether rounds were begun since the last look at which queues have keys.
        self._restarted = True
        self._length = _FIRST_LENGTH
        self._looked_at = -math.inf
        # Where claims met keys whose lease ran out. Claims of fresh keys pass every key and report them; a separate
        # search would walk through all keys, however large the backlog.
        self._suspected: dict[tuple[str, KeyPosition], None] = {}

    @property
    def paused(self) -> frozenset[str]:
        """The queues whose keys are not claimed for now."""
        return self._fresh.paused

    @paused.setter
    def paused(self, queues: frozenset[str]) -> None:
        self._fresh.paused = self._suspects.paused = queues

    @property
    def have_suspects(self) -> bool:
        """Whether claims met keys whose lease ran out."""
        return bool(self._suspected)

    @property
    def are_due(self) -> bool:
        """Whether it is time to look for runs."""
        return not self._fresh.at_rest or time.monotonic() >= self._looked_at + LOOK_EVERY

    @property
    def more(self) -> bool:
        """Whether another claim is likely to find runs."""
        return not self._fresh.at_rest

    def sooner(self, due: float | None) -> float | None:
        """Return in how many seconds the next row is due: the first of a run, or one without a key, due in `due`."""
        return min((each for each in (due, self._fresh.next_due) if each is not None), default=None)

    def restart(self) -> None:
        """Look at all keys again: rows may have come, or time has passed."""
        self._fresh.restart()
        self._restarted = True

    async def claim(self, lane: StoreLane, room: int, run_length: int, *, max_bytes: int = MAX_BYTES) -> RunClaim:
        """Claim runs of at most `room` rows together, each of at most `run_length` rows."""
        self._looked_at = time.monotonic()
        if len(self._fresh.queues) > _FEW_QUEUES and not await self._find_queues_with_keys(lane):
            return RunClaim(self._fresh.plan(), [], 0.0, more=False, next_due=None, suspects=False)
        claim = await self._claim_runs(
            lane,
            self._fresh,
            keys=max(1, int(room / self._length)),
            rows_per_key=min(self._rows_per_key, run_length),
            max_rows=room,
            max_bytes=max_bytes,
        )
        if claim.suspects and len(self._suspected) < _MOST_PLACES:
            self._suspected[claim.plan.queue, claim.plan.after] = None
        if claim.runs:
            length = sum(len(run.rows) for run in claim.runs) / len(claim.runs)
            self._length += _WEIGHT * (length - self._length)
        return claim

    async def _find_queues_with_keys(self, lane: StoreLane) -> bool:
        """Leave out queues without keys, once for each round; return whether there are others."""
        if self._fresh.at_rest:
            self.restart()
        if self._restarted:
            self._restarted = False
            queues = self._fresh.unvisited()
            self._fresh.rest(set(queues) - await lane.queues_with_keys(queues))
        return not self._fresh.at_rest

    async def recover(self, lane: StoreLane, *, max_deliveries: int | None) -> int:
        """Free keys whose lease is over, at places where claims met some; return how many."""
        recovered = 0
        for place in [each for each in self._suspected if each[0] not in self.paused][:_LOOKS]:
            self._suspects.go_to(*place)
            recovered += await lane.recover_runs(
                self._suspects, rows_per_key=self._rows_per_key, max_deliveries=max_deliveries
            )
        if recovered:
            self.restart()
        return recovered

    async def claim_suspect(self, lane: StoreLane) -> RunClaim | None:
        """Claim one key whose lease ran out, at one of the places where claims met some; None when there is none."""
        for place in [each for each in self._suspected if each[0] not in self.paused][:_LOOKS]:
            self._suspects.go_to(*place)
            claim = await self._claim_runs(lane, self._suspects, keys=1, rows_per_key=self._rows_per_key, suspects=True)
            if claim.runs:
                return claim
            del self._suspected[place]
        return None

    async def _claim_runs(self, lane: StoreLane, cursor: KeyCursor, **asked: Any) -> RunClaim:
        claim = await lane.claim_runs(cursor, lease_seconds=self._lease_seconds, **asked)
        if claim.lost and self._on_lost is not None:
            self._on_lost(claim.plan.queue, claim.lost)
        return claim
