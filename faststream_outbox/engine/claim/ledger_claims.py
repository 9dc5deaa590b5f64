"""Sends claims to the store and adds the claimed rows to the ledger."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from faststream_outbox.engine.claim.key_claims import KeyClaims
from faststream_outbox.engine.context import EngineContext
from faststream_outbox.storage import Claim, ClaimCursor, StoreLane
from faststream_outbox.storage.ordering import RunClaim

_T = TypeVar("_T")


class LedgerClaims:
    """Runs the claims of one claimer and adds their rows to the ledger.

    Only this process knows which rows it leased, so rows are added even if the claimer is stopped during the claim.
    """

    def __init__(self, context: EngineContext, keys: KeyClaims) -> None:
        self._lane = context.claim_lane
        self._ledger = context.ledger
        self._row_events = context.row_events
        self._keys = keys
        self._lease_seconds = context.options.lease_ttl_seconds
        self.cursor = ClaimCursor(context.queues)

    async def claim_rows(self, limit: int) -> Claim:
        """Claim rows without a key and admit them."""
        return await self._claim(
            lambda lane: lane.claim(self.cursor, limit=limit, lease_seconds=self._lease_seconds),
            self._add_rows,
            admit=True,
        )

    async def claim_runs(self, room: int, run_length: int) -> RunClaim:
        """Claim runs of rows with a key and admit them."""
        return await self._claim(lambda lane: self._keys.claim(lane, room, run_length), self._add_runs, admit=True)

    async def claim_suspect(self) -> bool:
        """Claim a row or a run whose last lease ran out, without admitting it; return whether there was one."""
        claim = await self._claim(
            lambda lane: lane.claim_suspect(self.cursor, lease_seconds=self._lease_seconds), self._add_suspects
        )
        if claim.rows or not self._keys.have_suspects:
            return bool(claim.rows)
        return await self._claim(self._keys.claim_suspect, self._add_runs) is not None

    async def next_due(self) -> float | None:
        """Return in how many seconds the next row is due; None when no row waits."""
        return self._keys.sooner(await self._lane.run(lambda lane: lane.next_due(self.cursor)))

    async def _claim(
        self,
        operation: Callable[[StoreLane], Coroutine[Any, Any, _T]],
        add: Callable[[_T], None],
        *,
        admit: bool = False,
    ) -> _T:
        """Claim and add the rows, even if the claimer is stopped meanwhile."""
        claim = await self._lane.run(operation, finish_if_cancelled=True)
        add(claim)
        if admit:
            self._ledger.admit_added()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await asyncio.sleep(0)  # raises CancelledError before anything else is claimed
        return claim

    def _add_rows(self, claim: Claim) -> None:
        self._row_events.claimed(self.cursor.queues, claim.rows)
        self._ledger.add(claim.rows, claim.expires_at)

    def _add_suspects(self, claim: Claim) -> None:
        if claim.rows:  # an empty look for suspects is not counted as a fetch
            self._add_rows(claim)

    def _add_runs(self, claim: RunClaim | None) -> None:
        if claim is not None and claim.runs:
            self._row_events.claimed(self.cursor.queues, [row for run in claim.runs for row in run.rows])
            self._ledger.add_runs(claim.runs, claim.expires_at)
