"""Pull: callers take single rows from a pipeline, in place of workers that call a handler."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from faststream_outbox.engine.claim.prefetch import CallerDemand
from faststream_outbox.engine.claim.stale_returner import UnwantedReturner
from faststream_outbox.engine.context import LAST_STEP_LIMIT, EngineContext
from faststream_outbox.engine.options import DEFAULTS, SubscriberOptions
from faststream_outbox.engine.pipeline import PipelineBase
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import Dead, Lease, OutboxRow, Outcome, Settlement, Store
from faststream_outbox.storage.ordering import HashShards, HeadLease
from faststream_outbox.storage.outcomes import give_up
from faststream_outbox.wakeup.wakeup import Announce


class Puller(PipelineBase):
    """Claims a row when a caller asks for one, and renews its lease until the caller settles it.

    Example:
        puller = Puller(store, ["orders"])
        held = await puller.pull(timeout=5.0)
        if held is not None:
            await puller.settle(held.lease, Ack())

    """

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        *,
        options: SubscriberOptions = DEFAULTS,
        monitor: Monitor | None = None,
        announce: Announce | None = None,
        row_type: type[OutboxRow] = OutboxRow,
    ) -> None:
        options = replace(
            options,
            # A caller that takes a row now and then leases no shards, and looks at the keys of all.
            ordering=HeadLease() if isinstance(options.ordering, HashShards) else options.ordering,
            # A caller waits until its outcome is written.
            terminal_flush_interval_ms=0.0,
            retry_flush_interval_ms=0.0,
        )
        self._demand = CallerDemand()
        context = EngineContext(store, queues, options, monitor=monitor, announce=announce, row_type=row_type)
        # Of a run, a caller would get the first row only.
        super().__init__(context, self._demand, rows_per_key=1)
        self._returner = UnwantedReturner(context, self._demand)
        self._loops.append(self._returner)

    async def pull(self, timeout: float | None = None) -> OutboxRow | None:  # noqa: ASYNC109 - like FastStream's get_one
        """Wait for a row; return None when none came in time, or when the puller is stopped."""
        if self._loop is None and not self.ending:
            self.start()
        self._demand.callers += 1
        self._ledger.note_change()
        self.wake()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    while not self.ending:
                        if (held := self._take()) is not None:
                            return held
                        await self._ledger.wait_for_arrivals(None)
            return None
        finally:
            self._demand.callers -= 1
            self._ledger.wake_takers()  # a row that was claimed for this caller goes to another one, or back

    async def settle(self, lease: Lease, outcome: Outcome) -> None:
        """Settle a row, and return when the outcome is written; the first outcome of a row stands."""
        held = self._ledger.find(lease)
        if held is not None and held.ended_at is None:
            self._put(held, outcome)
        await self._ledger.wait_until_gone(lease)

    async def stop(self, drain_seconds: float | None = LAST_STEP_LIMIT) -> None:
        """Claim no more, and give back the rows that have no outcome, their delivery uncounted."""
        await super().stop(drain_seconds)

    def _take(self) -> OutboxRow | None:
        """Take a waiting row; dead-letter those that were delivered too often."""
        limit = self._options.max_deliveries
        while self._ledger.waiting:
            [held] = self._ledger.take_waiting(1)
            if limit is None or held.deliveries_count <= limit:
                held.began_at = time.monotonic()
                self._row_events.dispatched([held])
                return held
            self._put(held, give_up(held, Dead("max_deliveries"), self._options.on_dead))
        return None

    def _put(self, held: OutboxRow, outcome: Outcome) -> None:
        self._ledger.finish([held])
        self._settler.put(Settlement(held.lease, outcome))

    async def _drain(self, drain_seconds: float | None) -> None:
        self._ledger.wake_takers()  # callers that wait return without a row
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                await self._stop_claiming()
                await self._returner.stop()
        undecided = self._ledger.take_unstarted()
        undecided += self._ledger.remove(held.lease for held in self._ledger.all() if held.ended_at is None)
        for held in undecided:
            self._row_events.given_back(held)
        await self._context.give_back(undecided)
