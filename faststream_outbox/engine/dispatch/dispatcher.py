"""Runs handlers: each worker takes rows, has them handled in one call, and hands the outcomes over."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from faststream_outbox.engine.claim.prefetch import LONGEST_RUN, Prefetch
from faststream_outbox.engine.dispatch.batcher import Batcher
from faststream_outbox.engine.handling import Handle, Handled
from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.engine.options import OnDead, give_up
from faststream_outbox.engine.settle.settler import Settler
from faststream_outbox.runtime.loop import Loop, give_way
from faststream_outbox.runtime.telemetry import RowEvents
from faststream_outbox.storage import Dead, OutboxRow, Retry, Settlement
from faststream_outbox.storage.ordering import RunSettlement
from faststream_outbox.storage.outcomes import blocks_its_key

# When a call ends in a bug its rows are tried again, not in a tight loop.
_AFTER_A_BUG: Final = 1.0

# For how long handlers run one after the other before the event loop has its turn: long against a turn of it, short
# against a round trip to the database.
_AT_A_STRETCH: Final = 0.001


class Worker(Loop):
    """One of the `max_workers` that handle rows side by side."""

    failure_event = "dispatch_failed"
    task = "Handling a row"

    def __init__(
        self,
        ledger: Ledger,
        batcher: Batcher,
        handle: Handle,
        settler: Settler,
        *,
        journal: RowEvents,
        prefetch: Prefetch,
        on_dead: OnDead = "skip",
        interruptible: bool = True,
    ) -> None:
        super().__init__(journal.monitor)
        self._ledger = ledger
        self._batcher = batcher
        self._handle = handle
        self._settler = settler
        self._journal = journal
        self._prefetch = prefetch
        self._on_dead = on_dead
        self._interruptible = interruptible
        self._busy_until = 0.0

    async def step(self) -> None:
        """Wait for rows and handle them."""
        await self._let_others_run()
        gathered, now = await self._batcher.gather(), time.monotonic()
        rows = [held for held in gathered if self._may_run(held, now)]
        if rows and rows[0].ordered:
            await self._run_in_order(rows[0])
        elif rows:
            handled, error = await self._call(rows)
            self._conclude(handled)
            if error is not None:
                raise error

    async def _let_others_run(self) -> None:
        """Leave the event loop now and then: a handler that waits for nothing would keep claims and settles waiting."""
        if time.monotonic() >= self._busy_until:
            await give_way()
            self._busy_until = time.monotonic() + _AT_A_STRETCH

    def _may_run(self, held: OutboxRow, now: float) -> bool:
        if now >= held.held_until:
            self._ledger.strike([held.lease])
            self._journal.lost(held, "dispatch")
            return False
        if self._batcher.is_given_up(held):
            end = give_up(held, Dead("max_deliveries"), self._on_dead)
            self._settler.put(settlement_of(held, [Settlement(held.lease, end)]))
            return False
        return True

    async def _run_in_order(self, head: OutboxRow) -> None:
        """Handle the rows of a key one after the other, or in one call, up to the first that fails."""
        if self._batcher.max_records > 1:
            self._batcher.cut(head)
            calls = [head.parts]
        else:
            calls = [[part] for part in head.parts]
        done: list[Settlement] = []
        error: BaseException | None = None
        enough = time.monotonic() + LONGEST_RUN
        for rows in calls:
            if done and (not head.surely_ours or time.monotonic() >= enough):
                break  # the rest is somebody else's by now, or is as it was when this is settled
            handled, error = await self._call(rows)
            if handled.settled.held or handled.settled.lost:
                self._settle_own(head, handled)
                return
            if error is not None and not handled.settlements:
                raise error  # it still runs: so does the lease, which covers those before it too
            self._batcher.learn(handled.settlements)
            done.extend(handled.settlements)
            if error is not None or any(blocks_its_key(each.outcome) for each in handled.settlements):
                break
        if done:
            self._settler.put(settlement_of(head, done))
        if error is not None:
            raise error

    def _settle_own(self, head: OutboxRow, handled: Handled) -> None:
        """Close the books on what a handler's own transaction has written, or has not because its lease was lost."""
        self._batcher.learn(handled.settlements)
        self._settler.take_over([settlement_of(head, handled.settlements)], handled.settled)

    async def _call(self, rows: Sequence[OutboxRow]) -> tuple[Handled, BaseException | None]:
        """Have rows handled in one call; returns what became of them, and what is to be raised then."""
        empty = max(0, self._batcher.max_records - len(rows))
        self._ledger.take_places(empty)
        began_at = time.monotonic()
        for held in rows:
            held.began_at = began_at
        self._journal.dispatched(rows)
        try:
            return await self._handle(rows), None
        except BaseException as error:  # noqa: BLE001 - raised by the caller, when the rows are taken care of
            stopped = isinstance(error, asyncio.CancelledError) and self._stopping
            # What cannot be interrupted still runs: its rows are left to their leases, lest they run twice at a time.
            if stopped and not self._interruptible:
                return Handled([]), error
            return Handled([Settlement(h.lease, _again(h, error, stopped=stopped)) for h in rows]), error
        finally:
            self._ledger.finish(rows)
            self._prefetch.observe(rows[0].duration / len(rows))
            self._ledger.free_places(empty)

    def _conclude(self, handled: Handled) -> None:
        self._batcher.learn(handled.settlements)
        self._settler.take_over(handled.settlements, handled.settled)


def settlement_of(head: OutboxRow, settlements: Sequence[Settlement]) -> Settlement | RunSettlement:
    """Put together what became of the first rows of a run; a single row's settlement is its own."""
    outcomes = []
    for settlement in settlements:
        outcomes.append((settlement.lease.row_id, settlement.outcome))
        if blocks_its_key(settlement.outcome):
            break  # it blocks its key, whatever was said of those behind it
    if len(outcomes) == 1:
        return settlements[0]  # the head alone, which its own lease covers
    return RunSettlement(head.lease, outcomes)


def _again(row: OutboxRow, error: BaseException, *, stopped: bool) -> Retry:
    if stopped:
        # In the middle of it: no attempt, and free at once, rather than when its lease runs out.
        return Retry(0.0, row.attempts_count, error=error)
    return Retry(_AFTER_A_BUG, row.attempts_count + 1, error=error)


class Dispatcher:
    """All workers of a subscriber."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers
        self._interrupting = False

    def start(self) -> None:
        """Let the workers begin."""
        for worker in self._workers:
            worker.start()

    async def stop(self) -> None:
        """Stop all workers, in the middle of a handler if need be."""
        self._interrupting = True
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    @property
    def interrupting(self) -> bool:
        """Whether handlers are being cancelled, because the time for draining is over."""
        return self._interrupting

    @property
    def alive(self) -> bool:
        """Whether every worker is at work."""
        return all(worker.alive for worker in self._workers)
