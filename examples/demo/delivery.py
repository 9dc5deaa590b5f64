"""The way of a message from the outbox to the handler: one lane claims rows, another settles them."""

import asyncio
from collections.abc import Awaitable, Callable

from faststream_outbox.storage import (
    Ack,
    ClaimCursor,
    Dead,
    OutboxRow,
    Outcome,
    Retry,
    Settlement,
    Store,
    StoreConnection,
)

# One round trip for many rows, yet a batch is handled long before its lease is over.
BATCH = 100
LEASE_SECONDS = 30.0
# How long to let rows gather when the last claim took all there were.
IDLE_SECONDS = 0.02
MAX_ATTEMPTS = 3
RETRY_SECONDS = 0.1


class Delivery:
    """Claims, handles and settles until the outbox is empty after `finish()`."""

    def __init__(self, store: Store, queue: str, handle: Callable[[bytes], Awaitable[None]]) -> None:
        self._store = store
        self._queue = queue
        self._handle = handle
        self._finishing = asyncio.Event()
        # Short, so that rows wait in the outbox rather than here with their leases running.
        self._handled: asyncio.Queue[list[Settlement] | None] = asyncio.Queue(maxsize=2)
        self.retried = 0
        self.settled = 0

    def finish(self) -> None:
        """Say that nothing more will be published."""
        self._finishing.set()

    async def run(self) -> None:
        """Deliver what there is and what will come."""
        async with asyncio.TaskGroup() as lanes:
            lanes.create_task(self._claim())
            lanes.create_task(self._settle())

    async def _claim(self) -> None:
        cursor = ClaimCursor([self._queue])
        async with self._store.connect() as lane:
            while True:
                claim = await lane.claim(cursor, limit=BATCH, lease_seconds=LEASE_SECONDS)
                if claim.rows:
                    await self._handled.put(await asyncio.gather(*map(self._deliver, claim.rows)))
                elif self._finishing.is_set() and await _is_empty(lane):
                    break
                if not claim.more:
                    await asyncio.sleep(IDLE_SECONDS)
        await self._handled.put(None)

    async def _deliver(self, row: OutboxRow) -> Settlement:
        attempts = row.attempts_count + 1
        outcome: Outcome = Ack()
        try:
            await self._handle(row.payload)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises decides about its row only
            if attempts < MAX_ATTEMPTS:
                outcome = Retry(delay_seconds=RETRY_SECONDS * attempts, attempts_count=attempts)
            else:
                outcome = Dead("retry_terminal", last_exception=repr(error), attempts_count=attempts)
        return Settlement(row.lease, outcome)

    async def _settle(self) -> None:
        async with self._store.connect() as lane:
            while settlements := await self._handled.get():
                settled = await lane.settle(settlements)
                if settled.failed:
                    raise ExceptionGroup("outcomes that the database refused", list(settled.failed.values()))
                # What was lost is somebody else's to settle.
                written = [settlement.outcome for settlement in settlements if settlement.lease in settled.held]
                retries = sum(isinstance(outcome, Retry) for outcome in written)
                self.retried += retries
                self.settled += len(written) - retries


async def _is_empty(lane: StoreConnection) -> bool:
    return not any(queue.total for queue in await lane.stats())
