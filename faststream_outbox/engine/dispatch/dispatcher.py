"""Workers: each takes claimed rows, calls the handler with them, and hands the outcomes to the settler."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from faststream_outbox.engine.claim.prefetch import LONGEST_RUN, MOST_BYTES, Prefetch
from faststream_outbox.engine.context import EngineContext
from faststream_outbox.engine.dispatch.batcher import Batcher
from faststream_outbox.engine.settle.settler import Settler
from faststream_outbox.runtime.loop import Loop, let_others_run
from faststream_outbox.storage import Dead, OutboxRow, Outcome, Retry, Settlement
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.contract import MAX_BYTES
from faststream_outbox.storage.nodes import node_of
from faststream_outbox.storage.outcomes import blocks_its_key, give_up

# Handles rows in one call and returns the settlement of each, but for those that it settled or gave back before; of a
# key it may return the first ones only. It catches what the handler raises, so an exception from it is a bug of this
# package.
Handle = Callable[[Sequence[OutboxRow]], Awaitable[Sequence[Settlement]]]

# After such a bug the rows are retried with this delay, so that it does not become a tight loop.
_DELAY_AFTER_BUG: Final = 1.0

# Handlers that never wait would keep claims and settles from running. Workers let the event loop run this often: long
# compared with a turn of the loop, short compared with a round trip to the database.
_LONGEST_BURST: Final = 0.001


# How long to wait between looks at whether this node has seen its lock again, after the event loop was blocked.
_BETWEEN_LOOKS_AT_LOCK: Final = 0.01


class Worker(Loop):
    """Takes rows from the ledger, calls the handler, and gives the outcomes to the settler.

    A subscriber has `max_workers` of them.
    """

    failure_event = "dispatch_failed"
    task = "Handling a row"

    def __init__(
        self,
        context: EngineContext,
        prefetch: Prefetch,
        batcher: Batcher,
        handle: Handle,
        settler: Settler,
        *,
        interruptible: bool,
    ) -> None:
        super().__init__(context.monitor)
        self._context = context
        self._node = context.store.nodes.own
        self._ledger = context.ledger
        self._row_events = context.row_events
        self._on_dead = context.options.on_dead
        self._prefetch = prefetch
        self._batcher = batcher
        self._handle = handle
        self._settler = settler
        self._interruptible = interruptible
        self._burst_ends_at = 0.0

    async def step(self) -> None:
        """Wait for the rows of one call, and handle them."""
        if time.monotonic() >= self._burst_ends_at:
            await let_others_run()
            self._burst_ends_at = time.monotonic() + _LONGEST_BURST
        while self._ledger.output_bytes >= MOST_BYTES:
            await self._ledger.wait_for_change()  # until answers are written
        gathered, now = await self._batcher.gather(), lease_now()
        # Rows wait in the order of their claims: if the first is not in doubt, none is.
        if gathered and self._node.may_doubt(gathered[0].claimed_at, now):
            gathered, now = await self._give_back_doubtful(gathered), lease_now()
        rows = [row for row in gathered if self._may_start(row, now)]
        if rows and rows[0].ordered:
            await self._handle_run(rows[0])
        elif rows:
            settlements, error = await self._call(rows)
            self._batcher.learn(settlements)
            self._settler.put(*settlements)
            if error is not None:
                raise error

    async def _give_back_doubtful(self, gathered: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Return the rows that no other process can have taken, and give back the rest.

        If the event loop was blocked, this node only has to look at its lock again.
        """
        leased = any(node_of(row.lease.token) is not None for row in gathered)
        while leased and self._node.locked and lease_now() >= self._node.sure_until:  # noqa: ASYNC110 - it outlives loops
            await asyncio.sleep(_BETWEEN_LOOKS_AT_LOCK)
        now = lease_now()
        sure, doubtful = list[OutboxRow](), list[OutboxRow]()
        for row in gathered:
            (sure if self._node.vouches_for(row.lease.token, row.claimed_at, now) else doubtful).append(row)
        await self._context.give_back(self._ledger.remove(row.lease for row in doubtful))
        return sure

    def _may_start(self, row: OutboxRow, now: float) -> bool:
        """Return whether a row may be handled; one whose lease is over, or that was delivered too often, is not."""
        if now >= row.held_until:
            self._ledger.remove([row.lease])
            self._row_events.lost(row, "dispatch")
            return False
        if self._batcher.limits.is_given_up(row):
            self._settler.put(Settlement(row.lease, give_up(row, Dead("max_deliveries"), self._on_dead)))
            return False
        return True

    async def _handle_run(self, head: OutboxRow) -> None:
        """Handle the rows of one key in order, in one call each or all in one, up to the first that fails."""
        done: list[Settlement] = []
        error: BaseException | None = None
        settle_at, output_bytes = time.monotonic() + LONGEST_RUN, 0
        early: _EarlySettle | None = None  # one for a run: a timer for each message would cost as much as the rest here
        for rows in self._calls(head):
            if done and (not self._holds(head) or time.monotonic() >= settle_at or self._is_large(output_bytes)):
                break  # the rows that are left are free again once these are settled
            if done:
                early = early or _EarlySettle(self._settler, head, done, settle_at)
                early.next_id = rows[0].id
            settlements, error = await self._call(rows)
            if error is not None and not settlements:
                raise error  # the handler still runs, under the lease that covers the rows before it too
            if early is not None and early.begun:
                head, done = await early.end()
                early = None
            self._batcher.learn(settlements)
            done.extend(settlements)
            output_bytes += sum([each.output_bytes for each in settlements])
            if error is not None or _ends_run(settlements, rows):
                break
        if early is not None:
            early.cancel()
        if done:
            self._settler.put(_settlement_of_run(head, done))
        if error is not None:
            raise error

    def _holds(self, head: OutboxRow) -> bool:
        now = lease_now()
        return now < head.held_until and self._node.vouches_for(head.lease.token, head.claimed_at, now)

    def _is_large(self, output_bytes: int) -> bool:
        """Return whether the answers of a run are enough for one statement, or those of all runs for the memory."""
        return output_bytes >= MAX_BYTES or self._ledger.output_bytes >= MOST_BYTES

    def _calls(self, head: OutboxRow) -> list[list[OutboxRow]]:
        if self._batcher.max_records > 1:
            self._batcher.cut(head)
            return [head.parts]
        return [[part] for part in head.parts]

    async def _call(self, rows: Sequence[OutboxRow]) -> tuple[Sequence[Settlement], BaseException | None]:
        """Handle rows in one call; return their settlements, and an exception to raise after settling."""
        unused = max(0, self._batcher.max_records - len(rows))
        self._ledger.reserve_places(unused)
        began_at = time.monotonic()
        for row in rows:
            row.began_at = began_at
        self._row_events.dispatched(rows)
        try:
            settlements = await self._handle(rows)
            self._note_outputs(rows, settlements)
            return settlements, None  # noqa: TRY300 - what the lines before raise is caught too
        except BaseException as error:  # noqa: BLE001 - raised by the caller, after the rows are settled
            stopped = isinstance(error, asyncio.CancelledError) and self._stopping
            # A handler in a thread runs on. Its rows keep their leases, or they would be handled twice at a time.
            if stopped and not self._interruptible:
                return [], error
            left = [row for row in rows if row.ended_at is None]
            return [Settlement(row.lease, _retry(row, error, stopped=stopped)) for row in left], error
        finally:
            self._ledger.finish(rows)
            self._prefetch.observe(rows[0].duration / len(rows))
            self._ledger.free_places(unused)

    def _note_outputs(self, rows: Sequence[OutboxRow], settlements: Sequence[Settlement]) -> None:
        for each in settlements:
            if size := each.output_bytes:
                self._ledger.add_outputs(next(row for row in rows if row.id == each.lease.row_id), size)


def _ends_run(settlements: Sequence[Settlement], rows: Sequence[OutboxRow]) -> bool:
    """Return whether no row behind these may be handled: one is not settled, or blocks its key."""
    return len(settlements) < len(rows) or any(blocks_its_key(each.outcome) for each in settlements)


class _EarlySettle:
    """Settles the rows of a key that are done, if the handler of the next one still runs when they are due."""

    def __init__(self, settler: Settler, head: OutboxRow, done: list[Settlement], due_at: float) -> None:
        self._settler = settler
        self._head = head
        # The rows that are done, to which the worker adds; and the id of the row whose handler runs.
        self._done = done
        self.next_id = 0
        self._task: asyncio.Task[OutboxRow | None] | None = None
        self._timer = asyncio.get_running_loop().call_later(due_at - time.monotonic(), self._begin)

    def _begin(self) -> None:
        run = _settlement_of_run(self._head, self._done, next_head=self.next_id)
        self._task = asyncio.create_task(self._settler.pass_lease(self._head, run))

    @property
    def begun(self) -> bool:
        """Whether the rows were due while the handler ran."""
        return self._task is not None

    async def end(self) -> tuple[OutboxRow, list[Settlement]]:
        """Return the row that has the lease now, and what is still to be settled."""
        next_head = None if self._task is None else await self._task
        return (self._head, self._done) if next_head is None else (next_head, [])

    def cancel(self) -> None:
        """Settle nothing early, unless that has begun."""
        self._timer.cancel()


def _settlement_of_run(
    head: OutboxRow, settlements: Sequence[Settlement], *, next_head: int | None = None
) -> Settlement:
    """Return one settlement for the first rows of a run, up to the first that blocks the key."""
    outcomes: list[tuple[int, Outcome]] = []
    for settlement in settlements:
        outcomes.append((settlement.lease.row_id, settlement.outcome))
        if blocks_its_key(settlement.outcome):
            break
    return Settlement.of_run(head.lease, outcomes, committed=settlements[0].committed, next_head=next_head)


def _retry(row: OutboxRow, error: BaseException, *, stopped: bool) -> Retry:
    if stopped:
        # Interrupted by our own shutdown: no attempt is counted, and another process may have the row at once.
        return Retry(0.0, row.attempts_count, error=error)
    return Retry(_DELAY_AFTER_BUG, row.attempts_count + 1, error=error)


class Dispatcher:
    """All workers of a subscriber."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers
        # Whether handlers are being cancelled, because the time for draining is over.
        self.interrupting = False

    def start(self) -> None:
        """Start the workers."""
        for worker in self._workers:
            worker.start()

    async def stop(self) -> None:
        """Stop all workers; handlers that still run are cancelled."""
        self.interrupting = True
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    @property
    def alive(self) -> bool:
        """Whether every worker is running."""
        return all(worker.alive for worker in self._workers)
