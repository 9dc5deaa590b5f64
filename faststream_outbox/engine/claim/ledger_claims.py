"""Sends claims to the store and adds the claimed rows to the ledger."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from faststream_outbox.engine.claim.key_claims import KeyClaims
from faststream_outbox.engine.claim.lost_claims import LostClaims, may_have_committed
from faststream_outbox.engine.claim.pauses import Pauses
from faststream_outbox.engine.context import CLAIM_LIMIT, EngineContext
from faststream_outbox.storage import Claim, ClaimCursor, StoreLane
from faststream_outbox.storage.contract import MAX_BYTES
from faststream_outbox.storage.ordering import RunClaim

_T = TypeVar("_T")


# Claims that were halved are doubled again while one takes less than this part of the time after which the last one
# failed. Near that time a larger one would fail again.
_QUICK: Final = 0.25
_LARGEST_DIVISOR: Final = 2**20
# The longest time for one claim, as a part of a lease: a renewal may wait for it, and the lease must outlive both.
_MOST_OF_LEASE: Final = 0.5


class ClaimSize:
    """How many rows and bytes one claim may bring: half after a claim that failed, perhaps because it was too large.

    A claim of one row cannot be made smaller: after one that took too long, the next may take twice the time.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._divisor = 1
        self._failed_after = math.inf
        self._longest = max(CLAIM_LIMIT, _MOST_OF_LEASE * lease_seconds)
        # How many seconds one claim may take.
        self.limit = CLAIM_LIMIT

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

    def allow_more_time(self) -> bool:
        """Double the time for the next claims; return whether it was not the longest yet."""
        before, self.limit = self.limit, min(2 * self.limit, self._longest)
        return self.limit > before

    def grow(self, seconds: float) -> None:
        """Double the next claims, up to the whole size, if one that brought rows was quick."""
        if seconds < _QUICK * self._failed_after:
            self._divisor = max(1, self._divisor // 2)
            self.limit = max(CLAIM_LIMIT, self.limit / 2)


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
        self._monitor = context.monitor
        self._rows_size = ClaimSize(self._lease_seconds)
        self._runs_size = ClaimSize(self._lease_seconds)
        self._lost = LostClaims(context.claim_lane, self._lease_seconds)
        self.cursor = ClaimCursor(context.queues)

    async def claim_rows(self, limit: int) -> Claim:
        """Claim rows without a key and admit them."""
        size = self._rows_size
        rows = size.rows(limit)
        return await self._claim(
            lambda lane: lane.claim(
                self.cursor, limit=rows, lease_seconds=self._lease_seconds, max_bytes=size.max_bytes
            ),
            self._add_rows,
            size,
            rows,
        )

    async def claim_runs(self, room: int, run_length: int) -> RunClaim:
        """Claim runs of rows with a key and admit them."""
        size = self._runs_size
        rows = size.rows(room)
        return await self._claim(
            lambda lane: self._keys.claim(lane, rows, run_length, max_bytes=size.max_bytes), self._add_runs, size, rows
        )

    async def claim_suspect(self) -> bool:
        """Claim a row or a run whose last lease ran out, without admitting it; return whether there was one."""
        claim = await self._claim(
            lambda lane: lane.claim_suspect(self.cursor, lease_seconds=self._lease_seconds),
            self._add_suspects,
            self._rows_size,
            admit=False,
        )
        if claim.rows or not self._keys.have_suspects:
            return bool(claim.rows)
        return await self._claim(self._keys.claim_suspect, self._add_runs, self._runs_size, admit=False) is not None

    @property
    def lost_due_at(self) -> float:
        """When to look for the rows of lost claims, on the monotonic clock; infinity while none was lost."""
        return self._lost.due_at

    async def give_back_lost(self) -> None:
        """Release the rows of claims whose answer was lost."""
        if await self._lost.give_back():
            self.cursor.restart()  # they lie before the marks, where only a sweep finds them
            self.restart_keys()

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
        size: ClaimSize,
        rows: int = 1,
        *,
        admit: bool = True,
    ) -> _T:
        """Claim up to so many rows and add them, even if the claimer is stopped meanwhile."""
        began = time.monotonic()
        claiming: StoreLane | None = None

        async def send(lane: StoreLane) -> _T:
            nonlocal claiming
            claiming, lane.sent = lane, None
            return await operation(lane)

        try:
            claim = await self._lane.run(send, finish_if_cancelled=True, limit=size.limit)
        except BaseException as error:
            size.shrink(time.monotonic() - began)
            if claiming is not None and claiming.sent is not None and may_have_committed(error):
                self._lost.add(claiming.sent)
                if rows == 1 and isinstance(error, TimeoutError):
                    self._allow_more_time(size)
            raise
        if add(claim):
            size.grow(time.monotonic() - began)
        self._pauses.give_back()  # a queue may have been paused during the claim
        if admit:
            self._ledger.admit_added()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await asyncio.sleep(0)  # raises CancelledError before anything else is claimed
        return claim

    def _allow_more_time(self, size: ClaimSize) -> None:
        took = size.limit
        if size.allow_more_time():
            message = (
                f"A claim of one row took longer than {took:g} seconds: the row may be too large for the connection to "
                f"the database. The next claim may take {size.limit:g} seconds, up to half of lease_ttl_seconds."
            )
            self._monitor.report("claim_failed", message)

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
