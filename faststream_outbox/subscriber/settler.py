"""Writes outcomes back, many rows at a time."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable

from faststream_outbox.storage import Retry, Settled, SettleInterruptedError, Settlement
from faststream_outbox.subscriber.events import Report
from faststream_outbox.subscriber.ledger import Ledger
from faststream_outbox.subscriber.link import Link
from faststream_outbox.subscriber.loop import Loop


class Settler(Loop):
    """Settles whenever it is free: while one batch is on the wire, the next one gathers.

    So an idle subscriber waits for nothing, and a busy one writes large batches. What cannot be written is tried again
    for as long as its lease lasts, and is never dropped before.
    """

    failure_event = "settle_failed"

    def __init__(self, link: Link, ledger: Ledger, report: Report, *, max_batch: int) -> None:
        super().__init__(report)
        self._link = link
        self._ledger = ledger
        self._max_batch = max_batch
        self._pending: deque[Settlement] = deque()
        self._arrived = asyncio.Event()
        self._written = asyncio.Event()
        self._writing = False

    def put(self, settlement: Settlement) -> None:
        """Hand over an outcome."""
        self._pending.append(settlement)
        self._arrived.set()

    async def flush(self) -> None:
        """Wait until all that was handed over is written."""
        while self._pending or self._writing:
            self._written.clear()
            await self._written.wait()

    async def step(self) -> None:
        """Wait for outcomes, and write what has gathered."""
        if not self._pending:
            self._arrived.clear()
            await self._arrived.wait()
        self._writing = True
        try:
            await self._write([self._pending.popleft() for _ in range(min(len(self._pending), self._max_batch))])
        finally:
            self._writing = False
            self._written.set()

    async def _write(self, batch: list[Settlement]) -> None:
        try:
            settled = await self._link.run(lambda lane: lane.settle(batch))
        except SettleInterruptedError as interruption:
            self._close_books(interruption.settled, batch)
            self._keep(batch, interruption.settled)
            raise
        except BaseException:
            self._keep(batch, Settled())
            raise
        self._close_books(settled, batch)
        if settled.failed:
            self._keep(batch, settled)
            error = next(iter(settled.failed.values()))
            count = len(settled.failed)
            raise RuntimeError(f"the database refused {count} of {len(batch)} outcomes: {error}") from error

    def _close_books(self, settled: Settled, batch: Iterable[Settlement]) -> None:
        self._ledger.strike(settled.held)
        lost = {held.lease: held for held in self._ledger.strike(settled.lost)}
        for settlement in batch:
            if (held := lost.get(settlement.lease)) is None:
                continue
            phase = "retry" if isinstance(settlement.outcome, Retry) else "terminal"
            self._report(
                "lease_lost",
                f"Row {held.row.id} was somebody else's by the time it was settled; nothing was written.",
                level=logging.WARNING,
                phase=phase,
                row_id=held.row.id,
                queue=held.row.queue,
                deliveries_count=held.row.deliveries_count,
            )

    def _keep(self, batch: Iterable[Settlement], settled: Settled) -> None:
        """Put back what is still to be written, unless its lease is over: then others have it, or will."""
        now = time.monotonic()
        unsettled = [s for s in batch if s.lease not in settled.held and s.lease not in settled.lost]
        lasting = [s for s in unsettled if self._ledger.expiry(s.lease) > now]
        self._pending.extendleft(reversed(lasting))
        for held in self._ledger.strike(s.lease for s in unsettled if s not in lasting):
            self._report(
                "settle_failed",
                f"The outcome of row {held.row.id} could not be written before its lease ran out.",
                level=logging.ERROR,
                row_id=held.row.id,
                queue=held.row.queue,
            )
