"""Writes outcomes back, many rows at a time."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.engine.settle.settle_buffer import SettleBuffer
from faststream_outbox.engine.settle.settle_retries import SettleRetries
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import RowEvents, describe, phase_of
from faststream_outbox.storage import (
    HANDLED,
    Ack,
    Lease,
    OutboxRow,
    Outcome,
    Retry,
    Settled,
    SettleInterruptedError,
    Settlement,
)
from faststream_outbox.storage.ordering import AnySettlement, RunSettlement
from faststream_outbox.wakeup.wakeup import Announce

# A row whose outcome the database refuses for good is delivered again after this long: kept, and in no tight loop.
_PUT_OFF_SECONDS: Final = 30.0


class Settler(Loop):
    """Settles whenever it is free: while one batch is on the wire, the next one gathers.

    So an idle subscriber waits for nothing, and a busy one writes large batches. What cannot be written is tried again
    for as long as its lease lasts, and is never dropped before.
    """

    failure_event = "settle_failed"
    task = "Settling rows"

    def __init__(
        self,
        link: ReconnectingLane,
        ledger: Ledger,
        journal: RowEvents,
        *,
        terminal: SettleBuffer,
        retry: SettleBuffer,
        expect: Callable[[float], None],
        announce: Announce | None = None,
    ) -> None:
        super().__init__(journal.monitor)
        self._link = link
        self._ledger = ledger
        self._journal = journal
        self._terminal = terminal
        self._retry = retry
        self._settle_retries = SettleRetries()
        self._expect = expect
        self._announce = announce
        self._arrived = asyncio.Event()
        self._written = asyncio.Event()
        self._writing = False
        self._hurrying = False

    def put(self, *settlements: AnySettlement) -> None:
        """Hand over outcomes."""
        retries = [s for s in settlements if isinstance(s.outcome, Retry)]
        if retries:
            self._retry.put(retries)
            settlements = tuple(s for s in settlements if not isinstance(s.outcome, Retry))
        self._terminal.put(settlements)
        self._arrived.set()

    def take_over(self, settlements: Sequence[AnySettlement], settled: Settled) -> None:
        """Hand over what became of a call's rows: close the books on what is written, and write the rest."""
        if settled.held or settled.lost:
            self._close_books(settled, settlements)
            done = settled.held | settled.lost
            settlements = [settlement for settlement in settlements if settlement.lease not in done]
        self.put(*settlements)

    def hurry(self) -> None:
        """Wait for no company from now on: the subscriber is stopping."""
        self._hurrying = True
        self._arrived.set()

    async def flush(self) -> None:
        """Wait until all that was handed over is written."""
        self.hurry()
        while self._pending or self._settle_retries or self._writing:
            self._written.clear()
            await self._written.wait()

    async def step(self) -> None:
        """Wait until there is something to write, and write it."""
        while (seconds := self._seconds_left()) > 0:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if seconds == math.inf else seconds):
                    await self._arrived.wait()
        self._writing = True
        try:
            if batch := self._take():
                await self._write(batch)
        finally:
            self._writing = False
            self._written.set()

    @property
    def _pending(self) -> int:
        return len(self._terminal) + len(self._retry)

    def _buffer(self, settlement: AnySettlement) -> SettleBuffer:
        return self._retry if isinstance(settlement.outcome, Retry) else self._terminal

    def _seconds_left(self) -> float:
        if self._pending and self._no_company_comes():
            return 0.0
        return min(self._terminal.due_at, self._retry.due_at, self._settle_retries.due_at) - time.monotonic()

    def _no_company_comes(self) -> bool:
        return self._hurrying or self._pending + len(self._settle_retries) >= len(self._ledger)

    def _take(self) -> list[AnySettlement]:
        now, all_of_them = time.monotonic(), self._no_company_comes()
        if self._settle_retries.due_at <= now:
            self.put(*self._settle_retries.take())
        buffers = (self._terminal, self._retry)
        return [s for buffer in buffers if all_of_them or buffer.due_at <= now for s in buffer.take()]

    async def _write(self, batch: list[AnySettlement]) -> None:
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
        self._refused(settled, batch)

    def _close_books(self, settled: Settled, batch: Sequence[AnySettlement]) -> None:
        written = self._ledger.strike(settled.held)
        if any(held.ordered for held in written):
            self._expect(0.0)  # a key is free, and more of its rows may have come
        if self._monitor.counts or not all(map(_goes_without_saying, batch)):
            self._tell_of(written, _by_lease(batch))
        if settled.lost:
            self._lose(settled.lost, batch)
        self._settle_retries.forget(chain(settled.held, settled.lost))

    def _lose(self, lost: frozenset[Lease], batch: Sequence[AnySettlement]) -> None:
        verdicts = _by_lease(batch)
        torn = {settlement.lease for settlement in batch if settlement.group is not None} & lost
        for held in self._ledger.strike(lost - torn):
            for part in held.parts:
                if part is held or part.dispatched:
                    self._journal.lost(part, phase_of(verdicts[held.lease].outcome))
        for lease in torn:
            # One of its group was lost. The others are free again at once, no attempt counted; who it was, this tells.
            if (left := self._ledger.find(lease)) is not None:
                self.put(Settlement(lease, Retry(0.0, left.attempts_count)))

    def _tell_of(self, written: Sequence[OutboxRow], verdicts: Mapping[Lease, AnySettlement]) -> None:
        rows, outcomes = list[OutboxRow](), list[Outcome]()
        for held in written:
            its = _outcomes(verdicts[held.lease])
            rows.extend(held.parts[: len(its)] if held.followers else [held])
            outcomes.extend(its)
        self._journal.settled(rows, outcomes)
        delays = [outcome.bounded_delay for outcome in outcomes if isinstance(outcome, Retry)]
        if delays:
            self._expect(min(delays))
        queues = {output.queue for outcome in outcomes if isinstance(outcome, Ack) for output in outcome.outputs}
        if queues and self._announce is not None:
            self._announce(queues)

    def _keep(self, batch: Iterable[AnySettlement], settled: Settled) -> None:
        """Put back what is still to be written, unless its lease is over: then others have it, or will.

        A group is put back as a whole while one of its leases lasts: what is left of it must not be taken for all.
        """
        unsettled = [s for s in batch if s.lease not in settled.held and s.lease not in settled.lost]
        standing = [s for s in unsettled if (held := self._ledger.find(s.lease)) is not None and held.surely_ours]
        kept, groups = {s.lease for s in standing}, {s.group for s in standing} - {None}
        lasting = [s for s in unsettled if s.lease in kept or s.group in groups]
        self._terminal.put_back([s for s in lasting if self._buffer(s) is self._terminal])
        self._retry.put_back([s for s in lasting if self._buffer(s) is self._retry])
        put_back = {s.lease for s in lasting}
        for held in self._ledger.strike(s.lease for s in unsettled if s.lease not in put_back):
            self._abandon(held)

    def _refused(self, settled: Settled, batch: Sequence[AnySettlement]) -> None:
        if not settled.failed:
            return
        error = next(iter(settled.failed.values()))
        message = f"The database refused {len(settled.failed)} of {len(batch)} outcomes: {describe(error)}"
        self._monitor.report(self.failure_event, message, level=logging.ERROR, error=error)
        for settlement in batch:
            held = self._ledger.find(settlement.lease)
            if settlement.lease not in settled.failed or held is None or self._settle_retries.add(settlement):
                continue
            if isinstance(settlement.outcome, Retry):
                self._ledger.strike([held.lease])
                self._abandon(held)
            else:
                refusal = settled.failed[settlement.lease]
                put_off = Retry(_PUT_OFF_SECONDS, held.attempts_count + 1, error=refusal)
                self.put(Settlement(held.lease, put_off))

    def _abandon(self, held: OutboxRow) -> None:
        self._settle_retries.forget([held.lease])
        for part in held.parts:
            if part is held or part.dispatched:
                self._journal.abandoned(part)


def _by_lease(batch: Sequence[AnySettlement]) -> dict[Lease, AnySettlement]:
    return {settlement.lease: settlement for settlement in reversed(batch)}  # the first verdict stands


def _goes_without_saying(settlement: AnySettlement) -> bool:
    """Tell whether there is nothing to tell, but to whoever counts: most rows are handled, and answered by nothing."""
    return settlement.outcome is HANDLED and not isinstance(settlement, RunSettlement)


def _outcomes(settlement: AnySettlement) -> list[Outcome]:
    if isinstance(settlement, RunSettlement):
        return [outcome for _, outcome in settlement.outcomes]
    return [settlement.outcome]
