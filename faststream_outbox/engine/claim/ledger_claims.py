"""Sends claims to the store and adds the claimed rows to the ledger."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from faststream_outbox.engine.claim.key_claims import KeyClaims
from faststream_outbox.engine.claim.pauses import Pauses
from faststream_outbox.engine.context import EngineContext
from faststream_outbox.storage import Claim, ClaimCursor, StoreLane
from faststream_outbox.storage.contract import MAX_BYTES
from faststream_outbox.storage.ordering import RunClaim

_T = TypeVar("_T")


# Claims that were halved are doubled again while one takes less than this part of the time after which the last one
# failed. Near that time a larger one would fail again.
_QUICK: Final = 0.25
_LARGEST_DIVISOR: Final = 2**20


class ClaimSize:
    """How many rows and bytes one claim may bring: half after a claim that failed, perhaps because it was too large."""

    def __init__(self) -> None:
        self._divisor = 1
        self._failed_after = math.inf

    @property
    def max_bytes(self) -> int:
        """How many bytes one claim may bring."""
        return max(1, MAX_BYTES // self._divisor)

    def rows(self, wanted: int) -> int:
        """Return how many of the wanted rows one claim may bring."""
        return max(1, wanted // self._divisor)

    def shrink(self, seconds: float) -> None:
        """Halve the next claims, because one failed after so many seconds."""
        self._divisor = min(2 * self._divisor, _LARGEST_DIVISOR)
        self._failed_after = seconds

    def grow(self, seconds: float) -> None:
        """Double the next claims, up to the whole size, if one that brought rows was quick."""
        if seconds < _QUICK * self._failed_after:
            self._divisor = max(1, self._divisor // 2)


class LedgerClaims:
    """Runs the claims of one claimer and adds their rows to the ledger.

    Only this process knows which rows it leased, so rows are added even if the claimer is stopped during the claim.
    """

    def __init__(self, context: EngineContext, keys: KeyClaims, pauses: Pauses) -> None:
        self._pauses = pauses
        self._lane = context.claim_lane
        self._ledger = context.ledger
        self._row_events = context.row_events
        self._keys = keys
        self._lease_seconds = context.options.lease_ttl_seconds
        self._max_deliveries = context.options.max_deliveries
        self._rows_size = ClaimSize()
        self._runs_size = ClaimSize()
        self.cursor = ClaimCursor(context.queues)

    async def claim_rows(self, limit: int) -> Claim:
        """Claim rows without a key and admit them."""
        size = self._rows_size
        return await self._claim(
            lambda lane: lane.claim(
                self.cursor, limit=size.rows(limit), lease_seconds=self._lease_seconds, max_bytes=size.max_bytes
            ),
            self._add_rows,
            size,
        )

    async def claim_runs(self, room: int, run_length: int) -> RunClaim:
        """Claim runs of rows with a key and admit them."""
        size = self._runs_size
        return await self._claim(
            lambda lane: self._keys.claim(lane, size.rows(room), run_length, max_bytes=size.max_bytes),
            self._add_runs,
            size,
        )

    async def claim_suspect(self) -> bool:
        """Claim a row or a run whose last lease ran out, without admitting it; return whether there was one."""
        claim = await self._claim(
            lambda lane: lane.claim_suspect(self.cursor, lease_seconds=self._lease_seconds), self._add_suspects
        )
        if claim.rows or not self._keys.have_suspects:
            return bool(claim.rows)
        return await self._claim(self._keys.claim_suspect, self._add_runs) is not None

    async def recover(self) -> bool:
        """Free rows and keys whose lease is over; return whether there were some."""
        most = self._max_deliveries
        recovered = await self._lane.run(lambda lane: lane.recover(self.cursor, max_deliveries=most))
        if recovered:
            self.cursor.restart()  # they lie before the marks, where only a sweep finds them
        if self._keys.have_suspects:
            recovered += await self._lane.run(lambda lane: self._keys.recover(lane, max_deliveries=most))
        return recovered > 0

    def restart_keys(self) -> None:
        """Look at all keys again."""
        self._keys.restart()

    async def next_due(self) -> float | None:
        """Return in how many seconds the next row is due; None when no row waits."""
        return self._keys.sooner(await self._lane.run(lambda lane: lane.next_due(self.cursor)))

    async def _claim(
        self,
        operation: Callable[[StoreLane], Coroutine[Any, Any, _T]],
        add: Callable[[_T], int],
        size: ClaimSize | None = None,
    ) -> _T:
        """Claim and add the rows, even if the claimer is stopped meanwhile; admit them, unless they are suspects."""
        began = time.monotonic()
        try:
            claim = await self._lane.run(operation, finish_if_cancelled=True)
        except Exception:
            if size is not None:
                size.shrink(time.monotonic() - began)
            raise
        if add(claim) and size is not None:
            size.grow(time.monotonic() - began)
        self._pauses.give_back()  # a queue may have been paused during the claim
        if size is not None:
            self._ledger.admit_added()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await asyncio.sleep(0)  # raises CancelledError before anything else is claimed
        return claim

    def _add_rows(self, claim: Claim) -> int:
        self._row_events.claimed(self.cursor.queues, claim.rows)
        self._ledger.add(claim.rows, claim.expires_at)
        return len(claim.rows)

    def _add_suspects(self, claim: Claim) -> int:
        # An empty look for suspects is not counted as a fetch.
        return self._add_rows(claim) if claim.rows else 0

    def _add_runs(self, claim: RunClaim | None) -> int:
        if claim is None or not claim.runs:
            return 0
        rows = [row for run in claim.runs for row in run.rows]
        self._row_events.claimed(self.cursor.queues, rows)
        self._ledger.add_runs(claim.runs, claim.expires_at)
        return len(rows)
