"""Makes, starts, drains and stops the parts that claim, dispatch and settle rows."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from faststream_outbox.engine.claim.claimer import Claimer, Demand
from faststream_outbox.engine.claim.key_claims import KeyClaims
from faststream_outbox.engine.claim.lease_renewer import LeaseRenewer
from faststream_outbox.engine.claim.prefetch import Prefetch
from faststream_outbox.engine.claim.shard_keeper import ShardKeeper, own_shards
from faststream_outbox.engine.claim.stale_returner import StaleReturner
from faststream_outbox.engine.context import EngineContext, in_time
from faststream_outbox.engine.dispatch.batcher import Batcher
from faststream_outbox.engine.dispatch.dispatcher import Dispatcher, Handle, Worker
from faststream_outbox.engine.options import DEFAULTS, SubscriberOptions
from faststream_outbox.engine.settle.settler import Settler
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import OutboxRow, Settlement, Store
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.ordering import NO_SHARDS, HashShards
from faststream_outbox.wakeup.wakeup import Announce


class PipelineBase(ABC):
    """Claims rows, renews their leases and settles them, on two connections. A subclass says who handles the rows."""

    def __init__(self, context: EngineContext, demand: Demand, *, rows_per_key: int) -> None:
        self._context = context
        self._options = options = context.options
        self._row_events = context.row_events
        self._ledger = context.ledger
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        # Ends that this node is known to read these queues.
        self._leave: Callable[[], None] = lambda: None
        shards = own_shards(options.ordering, context.queues)
        on_lost = context.row_events.contended
        keys = KeyClaims(context.queues, options, rows_per_key=rows_per_key, shards=shards, on_lost=on_lost)
        self._claimer = Claimer(context, demand, keys)
        self._settler = Settler(context, self._claimer.expect)
        self._lease_renewer = LeaseRenewer(context)
        self._loops = [self._settler, self._lease_renewer, self._claimer]
        self._shard_keeper: ShardKeeper | None = None
        if shards is not None and isinstance(options.ordering, HashShards) and options.ordering.is_shared:
            if not context.store.keeps_shards:
                raise RuntimeError(NO_SHARDS)
            self._shard_keeper = ShardKeeper(context, shards, self._claimer.wake)

    def start(self) -> None:
        """Begin to claim. A pipeline starts once: it does not keep its rows when it stops."""
        if self.ending:
            raise RuntimeError("This pipeline was stopped and cannot start again: make a new one.")
        if self._loop is not None:
            raise RuntimeError("This pipeline was started already: make a new one, or keep using this one.")
        self._loop = asyncio.get_running_loop()
        ordering = type(self._options.ordering).__name__
        self._leave = self._context.store.nodes.served.add(self._context.queues, ordering)
        for loop in self._loops:
            loop.start()
        if self._shard_keeper is not None:
            self._shard_keeper.start()

    def wake(self) -> None:
        """Look for rows now: some may have been committed."""
        self._claimer.wake()

    @property
    def orphaned(self) -> bool:
        """Whether the event loop in which the pipeline was started is not the one that runs now."""
        return self._loop is not None and self._loop is not asyncio.get_running_loop()

    @property
    def ending(self) -> bool:
        """Whether the pipeline was asked to stop."""
        return self._ending is not None

    @property
    def alive(self) -> bool:
        """Whether every part is running, and a claim has succeeded lately."""
        sharing = self._shard_keeper is None or self._shard_keeper.alive
        lately = self._claimer.idle_for < 2 * self._options.max_fetch_interval + self._options.lease_ttl_seconds
        return all(loop.alive for loop in self._loops) and sharing and lately

    async def stop(self, drain_seconds: float | None) -> None:
        """Claim no more, settle the rows in hand, and give back those that were not started in time.

        A second call while it is stopping waits for the same end.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(drain_seconds))
        await asyncio.shield(self._ending)  # a caller that is cancelled does not interrupt it

    async def _end(self, drain_seconds: float | None) -> None:
        self._leave()
        self._settler.flush_soon()
        await self._drain(drain_seconds)
        await self._claimer.pauses.finish()
        await in_time(self._settler.flush())
        for loop in self._loops:
            await in_time(loop.stop())
        await in_time(self._leave_shards())
        await in_time(self._leave_running())
        for held in self._ledger.remove(self._ledger.leases()):
            self._row_events.abandoned(held)
        for lane in (self._context.claim_lane, self._context.settle_lane):
            await in_time(lane.close())

    async def _leave_running(self) -> None:
        """Keep the rows of handlers that run on, in their threads, after the lock of this node has ended."""
        running = [held.lease for held in self._ledger.all() if held.dispatched]
        if running:
            with suppress(Exception):  # other processes take them sooner then, as after a kill
                await self._context.claim_lane.run(lambda lane: lane.leave_running(running))

    @abstractmethod
    async def _drain(self, drain_seconds: float | None) -> None:
        """Stop claiming, and let the rows in hand end within `drain_seconds`, or give them back."""

    async def _stop_claiming(self) -> None:
        await self._claimer.stop()
        await self._leave_shards()

    async def _leave_shards(self) -> None:
        """Give up our shards, so that other processes claim their keys; leases protect the rows in hand."""
        keeper, self._shard_keeper = self._shard_keeper, None
        if keeper is not None:
            await keeper.leave()


class Pipeline(PipelineBase):
    """Runs `max_workers` workers, which call a handler with the rows."""

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        handle: Handle,
        *,
        options: SubscriberOptions = DEFAULTS,
        rows_per_key: int | None = None,
        monitor: Monitor | None = None,
        announce: Announce | None = None,
        interruptible: bool = True,
        row_type: type[OutboxRow] = OutboxRow,
    ) -> None:
        context = EngineContext(store, queues, options, monitor=monitor, announce=announce, row_type=row_type)
        prefetch = Prefetch(max_workers=options.max_workers, most=options.capacity, max_records=options.rows_per_call)
        super().__init__(context, prefetch, rows_per_key=rows_per_key or options.rows_per_key)
        self._stale_returner = StaleReturner(context, prefetch.observe)
        self._loops.append(self._stale_returner)
        self._batcher = Batcher(self._ledger, options)
        parts = (context, prefetch, self._batcher, handle, self._settler)
        self._releases: set[asyncio.Task[None]] = set()
        self._dispatcher = Dispatcher([Worker(*parts, interruptible=interruptible) for _ in range(options.max_workers)])

    def start(self) -> None:
        """Begin to claim and to handle. A pipeline starts once: it does not keep its rows when it stops."""
        super().start()
        self._dispatcher.start()

    def pause(self) -> None:
        """Claim nothing until `resume`; the rows in hand are handled."""
        self._claimer.pause()

    def pause_queues(self, queues: Collection[str]) -> None:
        """Claim nothing from these queues until the next call, which names those that are to be paused then."""
        self._claimer.pause_queues(queues)

    def resume(self) -> None:
        """Claim again."""
        self._claimer.resume()

    def is_paused(self, queue: str) -> bool:
        """Return whether operators have paused a queue."""
        return queue in self._claimer.pauses.queues

    def suspect_waits(self) -> bool:
        """Return whether a row waits until it is alone, and nothing is claimed: rows should be given back, not kept."""
        return self._ledger.has_added

    def holds(self, row: OutboxRow) -> bool:
        """Return whether a row that was claimed here is in hand, and no other process can have taken it."""
        node = self._context.store.nodes.own
        return self._ledger.surely_holds(row.lease) and node.vouches_for(row.lease.token, row.claimed_at, lease_now())

    def settle(self, rows: Sequence[OutboxRow], settlements: Sequence[Settlement]) -> None:
        """Settle rows without a key before their call has ended; the call returns no settlement of them."""
        self._ledger.finish(rows)
        self._settler.put(*settlements)

    async def give_back(self, rows: Sequence[OutboxRow], *, delay_seconds: float) -> None:
        """Release rows whose call has not ended, or the run of a key by its head; no attempt or delivery is counted.

        The call returns no settlement of them. They are due again after the delay.
        """
        for row in rows:
            self._ledger.finish(row.parts)
        given_back = self._ledger.remove(row.lease for row in rows)
        for row in given_back:
            for part in row.parts:
                self._row_events.given_back(part)
        release = asyncio.create_task(self._context.give_back(given_back, delay_seconds=delay_seconds, announce=False))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)
        await asyncio.shield(release)  # a release that is cancelled would leave the rows leased
        self._claimer.expect(delay_seconds)

    @property
    def alive(self) -> bool:
        """Whether every part is running, and a claim has succeeded lately."""
        return super().alive and self._dispatcher.alive

    @property
    def interrupting(self) -> bool:
        """Whether handlers are being cancelled, because the time for draining is over."""
        return self._dispatcher.interrupting

    async def _drain(self, drain_seconds: float | None) -> None:
        self._batcher.stop_waiting()
        try:
            async with asyncio.timeout(drain_seconds):
                await self._stop_claiming()
                await self._stale_returner.stop()  # from here on every row in hand is to run here
                # A suspect that waits to run alone does not get its turn any more.
                await self._context.give_back(self._ledger.take_added())
                await self._ledger.wait_until_at_most(0)
        except TimeoutError:
            await self._cut_short(drain_seconds)
        await in_time(self._dispatcher.stop())
        if self._releases:
            await in_time(asyncio.wait(self._releases))

    async def _cut_short(self, drain_seconds: float | None) -> None:
        unstarted = self._ledger.take_unstarted()
        self._context.monitor.record(
            "drain_timeout", queue=self._context.queues[0], drain_timeout_seconds=drain_seconds
        )
        self._context.monitor.report(
            "drain_timeout",
            f"The time for draining is over: {len(self._ledger)} rows are still running and will be delivered again, "
            f"{len(unstarted)} were not started and are given back.",
            level=logging.WARNING,
            running=len(self._ledger),
            released=len(unstarted),
            graceful_timeout=drain_seconds,
        )
        stops = (self._dispatcher.stop(), self._claimer.stop())
        await asyncio.gather(self._context.give_back(unstarted), *map(in_time, stops))
        # A claim that was under way may have brought rows meanwhile.
        await self._context.give_back(self._ledger.take_unstarted())
