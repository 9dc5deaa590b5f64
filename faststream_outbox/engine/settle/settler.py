"""Writes outcomes to the table, many rows in one statement."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

from faststream_outbox.engine.context import EngineContext
from faststream_outbox.engine.settle.settle_buffer import SettleBuffer
from faststream_outbox.engine.settle.settle_retries import SettleRetries
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import describe, phase_of
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
from faststream_outbox.storage.errors import advice

# A row whose outcome the database refuses for good is delivered again after this delay: kept, without a tight loop.
_DELAY_AFTER_REFUSAL: Final = 30.0


class Settler(Loop):
    """Settles whenever it is free: while one batch is being written, the next one gathers.

    An idle subscriber settles at once, and a busy one writes large batches. An outcome that cannot be written is tried
    again for as long as its lease lasts, and is never dropped before.
    """

    failure_event = "settle_failed"
    task = "Settling rows"

    def __init__(self, context: EngineContext, expect: Callable[[float], None]) -> None:
        super().__init__(context.monitor)
        self._lane = context.settle_lane
        self._ledger = context.ledger
        self._row_events = context.row_events
        self._announce = context.announce
        self._expect = expect
        options = context.options
        self._terminal = SettleBuffer(options.terminal_batch_size, options.terminal_flush_interval_ms / 1000)
        self._retry = SettleBuffer(options.retry_batch_size, options.retry_flush_interval_ms / 1000)
        self._settle_retries = SettleRetries()
        self._arrived = asyncio.Event()
        self._written = asyncio.Event()
        self._writing = False
        self._passing = 0
        self._flushes_soon = False

    def put(self, *settlements: Settlement) -> None:
        """Accept outcomes: those to be written wait in a buffer, those a handler committed itself are recorded."""
        # Annotated literals: this runs for every message, and `list[Settlement]()` takes 0.3 µs, `[]` 0.02.
        terminal: list[Settlement] = []
        retries: list[Settlement] = []
        committed: list[Settlement] = []
        for each in settlements:
            if each.committed is not None:
                committed.append(each)
            elif isinstance(each.outcome, Retry):
                retries.append(each)
            else:
                terminal.append(each)
        if committed:
            held = {each.lease for each in committed if each.committed}
            self._record(Settled(held, {each.lease for each in committed} - held), committed)
        if retries:
            self._retry.put(retries)
        self._terminal.put(terminal)
        self._arrived.set()

    async def pass_lease(self, head: OutboxRow, run: Settlement) -> OutboxRow | None:
        """Settle the first rows of a key while the handler of the next one runs; return the row that has the lease.

        None if that was not possible, for any reason: the rows are settled, or reported as lost, with the next one.
        """
        self._passing += 1
        try:
            settled = await self._lane.run(lambda lane: lane.settle([run]))
        except Exception as error:  # noqa: BLE001 - the rows are settled with the next one
            self._monitor.report(
                self.failure_event,
                f"Rows of a key could not be settled before the next one ends: {describe(error)}",
                level=logging.WARNING,
                error=error,
            )
            return None
        finally:
            self._passing -= 1
            self._written.set()
        if run.lease not in settled.held or self._ledger.find(run.lease) is None:
            return None
        next_head = self._ledger.pass_lease(head, len(run.outcomes))
        self._report_written([head], {run.lease: run})
        return next_head

    def flush_soon(self) -> None:
        """Write from now on without waiting for larger batches: the subscriber is stopping."""
        self._flushes_soon = True
        self._arrived.set()

    async def flush(self) -> None:
        """Wait until every outcome that was put is written."""
        self.flush_soon()
        while self._pending or self._settle_retries or self._writing or self._passing:
            self._written.clear()
            await self._written.wait()

    async def step(self) -> None:
        """Wait until a batch is due, and write it."""
        while (seconds := self._seconds_until_due()) > 0:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if seconds == math.inf else seconds):
                    await self._arrived.wait()
        self._writing = True
        try:
            if batch := self._take_batch():
                await self._write(batch)
        finally:
            self._writing = False
            self._written.set()

    @property
    def _pending(self) -> int:
        return len(self._terminal) + len(self._retry)

    def _seconds_until_due(self) -> float:
        if self._pending and self._batch_is_complete():
            return 0.0
        return min(self._terminal.due_at, self._retry.due_at, self._settle_retries.due_at) - time.monotonic()

    def _batch_is_complete(self) -> bool:
        """Return whether waiting brings no more outcomes: every row in hand has one, or the subscriber is stopping."""
        return self._flushes_soon or self._pending + len(self._settle_retries) >= len(self._ledger)

    def _take_batch(self) -> list[Settlement]:
        now, complete = time.monotonic(), self._batch_is_complete()
        if self._settle_retries.due_at <= now:
            self.put(*self._settle_retries.take())
        buffers = (self._terminal, self._retry)
        return [each for buffer in buffers if complete or buffer.due_at <= now for each in buffer.take()]

    async def _write(self, batch: list[Settlement]) -> None:
        try:
            settled = await self._lane.run(lambda lane: lane.settle(batch))
        except SettleInterruptedError as interruption:
            self._record(interruption.settled, batch)
            self._put_back(batch, interruption.settled)
            raise interruption.__cause__ or interruption from None  # the log names what the server answered
        except BaseException:
            self._put_back(batch, Settled())
            raise
        self._record(settled, batch)
        self._retry_refused(settled, batch)

    def _record(self, settled: Settled, batch: Sequence[Settlement]) -> None:
        """Remove settled rows from the ledger, and report their outcomes."""
        written = self._ledger.remove(settled.held)
        if any(row.ordered for row in written):
            self._expect(0.0)  # its key is free, and more of its rows may be there
        if self._monitor.counts or not all(map(_is_plain_ack, batch)):
            self._report_written(written, _by_lease(batch))
        if settled.lost:
            self._record_lost(settled.lost, batch)
        self._settle_retries.forget(chain(settled.held, settled.lost))

    def _report_written(self, written: Sequence[OutboxRow], settlements: Mapping[Lease, Settlement]) -> None:
        rows, outcomes = list[OutboxRow](), list[Outcome]()
        for row in written:
            its_outcomes = [outcome for _, outcome in settlements[row.lease].outcomes]
            rows.extend(row.parts[: len(its_outcomes)] if row.followers else [row])
            outcomes.extend(its_outcomes)
        self._row_events.settled(rows, outcomes)
        delays = [outcome.bounded_delay for outcome in outcomes if isinstance(outcome, Retry)]
        if delays:
            self._expect(self._lane.time_left(min(delays)))
        queues = {output.queue for outcome in outcomes if isinstance(outcome, Ack) for output in outcome.outputs}
        if queues and self._announce is not None:
            self._announce(queues)

    def _record_lost(self, lost: set[Lease], batch: Sequence[Settlement]) -> None:
        settlements = _by_lease(batch)
        grouped = {each.lease for each in batch if each.group is not None} & lost
        for row in self._ledger.remove(lost - grouped):
            for part in row.parts:
                if part is row or part.dispatched:
                    self._row_events.lost(part, phase_of(settlements[row.lease].outcome))
        for lease in grouped:
            # A lease of the group was lost, and we do not know which. Retry each row at once, no attempt counted: the
            # rows that are still ours become free, and the settle reports the one that was lost.
            if (row_in_hand := self._ledger.find(lease)) is not None:
                self.put(Settlement(lease, Retry(0.0, row_in_hand.attempts_count)))

    def _put_back(self, batch: Iterable[Settlement], settled: Settled) -> None:
        """Put outcomes that were not written back into their buffers; those whose lease is over are abandoned.

        A group is put back as a whole while one of its leases lasts: a part of it must not be written alone.
        """
        unsettled = [each for each in batch if each.lease not in settled.held and each.lease not in settled.lost]
        ours = [each for each in unsettled if self._ledger.surely_holds(each.lease)]
        leases, groups = {each.lease for each in ours}, {each.group for each in ours} - {None}
        kept = [each for each in unsettled if each.lease in leases or each.group in groups]
        self._terminal.put_back([each for each in kept if not isinstance(each.outcome, Retry)])
        self._retry.put_back([each for each in kept if isinstance(each.outcome, Retry)])
        kept_leases = {each.lease for each in kept}
        for row in self._ledger.remove(each.lease for each in unsettled if each.lease not in kept_leases):
            self._abandon(row)

    def _retry_refused(self, settled: Settled, batch: Sequence[Settlement]) -> None:
        """Try outcomes that the database refused again; after the last try the row itself is retried later."""
        if not settled.failed:
            return
        error = next(iter(settled.failed.values()))
        message = (
            f"The database refused {len(settled.failed)} of {len(batch)} outcomes: {describe(error)}.{advice(error)}"
        )
        self._monitor.report(self.failure_event, message, level=logging.ERROR, error=error)
        for settlement in batch:
            row = self._ledger.find(settlement.lease)
            if settlement.lease not in settled.failed or row is None or self._settle_retries.add(settlement):
                continue
            if isinstance(settlement.outcome, Retry):
                self._ledger.remove([row.lease])
                self._abandon(row)
            else:
                refusal = settled.failed[settlement.lease]
                retry = Retry(_DELAY_AFTER_REFUSAL, row.attempts_count + 1, error=refusal)
                self.put(Settlement(row.lease, retry))

    def _abandon(self, row: OutboxRow) -> None:
        self._settle_retries.forget([row.lease])
        for part in row.parts:
            if part is row or part.dispatched:
                self._row_events.abandoned(part)


def _by_lease(batch: Sequence[Settlement]) -> dict[Lease, Settlement]:
    return {settlement.lease: settlement for settlement in reversed(batch)}  # the first outcome for a lease stands


def _is_plain_ack(settlement: Settlement) -> bool:
    """Return whether only metrics have something to report: one row, handled, no outputs. Most are like that."""
    return settlement.outcome is HANDLED and not settlement.followers
