"""What the parts of one pipeline share: options, connections, the ledger, the log, and the way to give rows back."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Final

from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.runtime.telemetry import Monitor, RowEvents, describe
from faststream_outbox.storage import OutboxRow, Store
from faststream_outbox.wakeup.wakeup import Announce

# How many seconds each last step (release, settle, close) may take after the time for draining.
LAST_STEP_LIMIT: Final = 5.0
# How many seconds a claim or a renewal may take.
CLAIM_LIMIT: Final = 10.0


class EngineContext:
    """What a pipeline makes once and gives to each of its parts.

    `announce` wakes the subscribers of queues for which a settle or a release made rows due.
    """

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        options: SubscriberOptions,
        *,
        monitor: Monitor | None,
        announce: Announce | None,
        row_type: type[OutboxRow],
    ) -> None:
        self.store = store
        self.queues = tuple(queues)
        self.options = options
        self.monitor = monitor or Monitor()
        self.announce = announce
        self.row_events = RowEvents(self.monitor, keeps_dead=store.keeps_dead)
        self.ledger = Ledger()
        # Renewals use the lane of claims: a claim never waits for a lock, while a settle may wait for one for long.
        self.claim_lane = ReconnectingLane(store, limit=CLAIM_LIMIT, row_type=row_type)
        self.settle_lane = ReconnectingLane(store, limit=30.0)

    async def give_back(self, rows: Sequence[OutboxRow], *, announce: bool = True, delay_seconds: float = 0.0) -> None:
        """Release rows, their delivery uncounted, and announce them; if that fails, their leases run out."""
        if not rows:
            return
        try:
            async with asyncio.timeout(LAST_STEP_LIMIT):
                await self.claim_lane.run(lambda lane: lane.release(rows, delay_seconds=delay_seconds))
        except Exception as error:  # noqa: BLE001 - other processes get the rows when the leases have run out
            message = f"Could not give back {len(rows)} rows; they are delivered again when their leases have run out: "
            self.monitor.report("release_failed", message + describe(error), error=error)
            return
        if announce and self.announce is not None:
            self.announce({row.queue for row in rows})


async def in_time(ending: Awaitable[object]) -> None:
    """Wait for a last step, 5 seconds at most: a silent server or a handler that ignores cancellation may never end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_STEP_LIMIT):
            await ending
