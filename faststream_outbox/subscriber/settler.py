"""Writes outcomes back, many rows at a time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from faststream_outbox.storage import Retry, Settled, SettleInterruptedError, Settlement
from faststream_outbox.subscriber.journal import Journal, phase_of
from faststream_outbox.subscriber.ledger import Ledger
from faststream_outbox.subscriber.link import Link
from faststream_outbox.subscriber.loop import Loop


class Settler(Loop):
    """Settles whenever it is free: while one batch is on the wire, the next one gathers.

    So an idle subscriber waits for nothing, and a busy one writes large batches. What cannot be written is tried again
    for as long as its lease lasts, and is never dropped before.
    """

    failure_event = "settle_failed"

    def __init__(
        self, link: Link, ledger: Ledger, journal: Journal, *, max_batch: int, expect: Callable[[float], None]
    ) -> None:
        super().__init__(journal.monitor)
        self._link = link
        self._ledger = ledger
        self._journal = journal
        self._max_batch = max_batch
        self._expect = expect
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

    def _close_books(self, settled: Settled, batch: Sequence[Settlement]) -> None:
        verdicts = {settlement.lease: settlement.outcome for settlement in reversed(batch)}
        for held in self._ledger.strike(settled.held):
            outcome = verdicts[held.lease]
            self._journal.settled(held, outcome)
            if isinstance(outcome, Retry):
                self._expect(outcome.bounded_delay)
        for held in self._ledger.strike(settled.lost):
            self._journal.lost(held, phase_of(verdicts[held.lease]))

    def _keep(self, batch: Iterable[Settlement], settled: Settled) -> None:
        """Put back what is still to be written, unless its lease is over: then others have it, or will."""
        now = time.monotonic()
        unsettled = [s for s in batch if s.lease not in settled.held and s.lease not in settled.lost]
        lasting = [s for s in unsettled if self._ledger.expiry(s.lease) > now]
        self._pending.extendleft(reversed(lasting))
        for held in self._ledger.strike(s.lease for s in unsettled if s not in lasting):
            self._journal.abandoned(held)
