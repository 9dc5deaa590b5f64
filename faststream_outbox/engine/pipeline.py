"""A subscriber without FastStream: the parts, wired; begun, drained and ended together."""

import asyncio
import logging
from collections.abc import Sequence

from faststream_outbox.engine.claim.claimer import Claimer
from faststream_outbox.engine.claim.key_claims import KeyClaims
from faststream_outbox.engine.claim.lease_renewer import LeaseRenewer
from faststream_outbox.engine.claim.prefetch import Prefetch
from faststream_outbox.engine.claim.shard_keeper import ShardKeeper, own_shards
from faststream_outbox.engine.claim.stale_returner import StaleReturner
from faststream_outbox.engine.dispatch.batcher import Batcher
from faststream_outbox.engine.dispatch.dispatcher import Dispatcher, Handle, Worker
from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.engine.options import DEFAULTS, SubscriberOptions
from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.engine.settle.settle_buffer import SettleBuffer
from faststream_outbox.engine.settle.settler import Settler
from faststream_outbox.engine.shutdown import Shutdown, give_back, in_time
from faststream_outbox.runtime.telemetry import Monitor, RowEvents
from faststream_outbox.storage import OutboxRow, Store
from faststream_outbox.storage.ordering import NO_SHARDS, HashShards
from faststream_outbox.wakeup.wakeup import Announce


class Pipeline:
    """Claims, dispatches and settles, on two connections whatever `max_workers` is."""

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
        self._monitor = monitor or Monitor()
        journal = RowEvents(self._monitor, keeps_dead=store.keeps_dead)
        self._queues = tuple(queues)
        self._announce = announce
        self._journal = journal
        self._options = options
        self._started = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shutdown = Shutdown()
        self._ledger = Ledger()
        prefetch = Prefetch(max_workers=options.max_workers, most=options.capacity, max_records=options.rows_per_call)
        # A claim waits for nobody and is soon there; a settle may wait for a lock that somebody holds.
        self._claim_lane, self._settle_lane = (
            ReconnectingLane(store, limit=10.0, row_type=row_type),
            ReconnectingLane(store, limit=30.0),
        )
        # Renewals share the lane that waits for no lock: a settle may have to, for as long as somebody holds one.
        self._lease_renewer = LeaseRenewer(
            self._claim_lane, self._ledger, self._monitor, lease_seconds=options.lease_ttl_seconds
        )
        self._stale_returner = StaleReturner(
            *(self._claim_lane, self._ledger, self._monitor),
            too_slow=prefetch.observe,
            max_wait=options.max_wait_ms / 1000,
            announce=announce,
        )
        shards = own_shards(options.ordering, self._queues)
        self._claimer = Claimer(
            self._claim_lane,
            self._ledger,
            journal,
            prefetch,
            KeyClaims(
                self._queues,
                rows_per_key=rows_per_key or options.rows_per_key,
                lease_seconds=options.lease_ttl_seconds,
                ordering=options.ordering,
                shards=shards,
            ),
            queues=self._queues,
            options=options,
        )
        self._shards: ShardKeeper | None = None
        if shards is not None and isinstance(options.ordering, HashShards) and options.ordering.is_shared:
            if not store.keeps_shards:
                raise RuntimeError(NO_SHARDS)
            self._shards = ShardKeeper(self._claim_lane, self._queues, shards, self._monitor, wake=self._claimer.wake)
        self._settler = Settler(
            self._settle_lane,
            self._ledger,
            journal,
            terminal=SettleBuffer(
                batch_size=options.terminal_batch_size, flush_interval=options.terminal_flush_interval_ms / 1000
            ),
            retry=SettleBuffer(
                batch_size=options.retry_batch_size, flush_interval=options.retry_flush_interval_ms / 1000
            ),
            expect=lambda seconds: self._claimer.expect(self._settle_lane.left_of(seconds)),
            announce=announce,
        )
        self._batcher = Batcher(
            self._ledger,
            max_records=options.rows_per_call,
            max_wait=options.max_wait_ms / 1000,
            max_deliveries=options.max_deliveries,
        )
        self._dispatcher = Dispatcher(
            [
                Worker(
                    *(self._ledger, self._batcher, handle, self._settler),
                    journal=journal,
                    prefetch=prefetch,
                    on_dead=options.on_dead,
                    interruptible=interruptible,
                )
                for _ in range(options.max_workers)
            ]
        )

    def start(self) -> None:
        """Begin to claim; once, because what a pipeline holds does not outlive its stop."""
        if self._shutdown.begun:
            raise RuntimeError("This pipeline was stopped, and does not start again: make a new one.")
        if self._started:
            raise RuntimeError("This pipeline has been started already.")
        self._started = True
        self._loop = asyncio.get_running_loop()
        self._settler.start()
        self._lease_renewer.start()
        self._stale_returner.start()
        self._dispatcher.start()
        self._claimer.start()
        if self._shards is not None:
            self._shards.start()

    def wake(self) -> None:
        """Say that rows may have come."""
        self._claimer.wake()

    def pause(self) -> None:
        """Claim nothing until `resume`; what is in hand runs."""
        self._claimer.pause()

    def resume(self) -> None:
        """Claim again."""
        self._claimer.resume()

    def holds(self, row: OutboxRow) -> bool:
        """Tell whether a row that was claimed here is surely still ours."""
        held = self._ledger.find(row.lease)
        return held is not None and held.surely_ours

    @property
    def orphaned(self) -> bool:
        """Whether the event loop that it ran in is over."""
        return self._loop is not None and self._loop is not asyncio.get_running_loop()

    @property
    def ending(self) -> bool:
        """Whether somebody has asked for the end."""
        return self._shutdown.begun

    @property
    def interrupting(self) -> bool:
        """Whether handlers are being cancelled, because the time for draining is over."""
        return self._dispatcher.interrupting

    @property
    def alive(self) -> bool:
        """Whether every part is running, and rows were claimed, or found missing, lately."""
        parts = (self._settler, self._lease_renewer, self._stale_returner, self._dispatcher, self._claimer)
        sharing = self._shards is None or self._shards.alive
        lately = self._claimer.idle_for < 2 * self._options.max_fetch_interval + self._options.lease_ttl_seconds
        return all(part.alive for part in parts) and sharing and lately

    async def stop(self, drain_seconds: float | None) -> None:
        """Claim no more, let what is in hand run and be settled, give back what was not started in time.

        Whoever asks while it is stopping waits for the same end.
        """
        await self._shutdown.run(lambda: self._end(drain_seconds))

    async def _end(self, drain_seconds: float | None) -> None:
        self._settler.hurry()
        self._batcher.hurry()
        try:
            async with asyncio.timeout(drain_seconds):
                await self._claimer.stop()
                await self._leave_shards()
                await (
                    self._stale_returner.stop()
                )  # from here on there is nothing better to do than to run what is in hand
                # A suspect that waits for its turn alone will not get it here.
                await self._give_back(self._ledger.take_aside())
                await self._ledger.wait_until_at_most(0)
        except TimeoutError:
            await self._cut_short(drain_seconds)
        await in_time(self._dispatcher.stop())
        await in_time(self._settler.flush())
        await in_time(self._settler.stop())
        for loop in (self._claimer, self._stale_returner, self._lease_renewer):
            await in_time(loop.stop())
        await in_time(self._leave_shards())
        for held in self._ledger.strike(self._ledger.leases()):
            self._journal.abandoned(held)
        for link in (self._claim_lane, self._settle_lane):
            await in_time(link.close())

    async def _leave_shards(self) -> None:
        """Let others look at our keys from now on; those in hand are kept from them by their own leases."""
        shards, self._shards = self._shards, None
        if shards is not None:
            await shards.leave()

    async def _cut_short(self, drain_seconds: float | None) -> None:
        unstarted = self._ledger.take_unstarted()
        self._monitor.record("drain_timeout", queue=self._queues[0], drain_timeout_seconds=drain_seconds)
        self._monitor.report(
            "drain_timeout",
            f"The time for draining is over: {len(self._ledger)} rows are still running and will be delivered again, "
            f"{len(unstarted)} were not started and are given back.",
            level=logging.WARNING,
            running=len(self._ledger),
            released=len(unstarted),
            graceful_timeout=drain_seconds,
        )
        stops = (self._dispatcher.stop(), self._claimer.stop())
        await asyncio.gather(self._give_back(unstarted), *map(in_time, stops))
        # A claim that was under way may have brought rows meanwhile.
        await self._give_back(self._ledger.take_unstarted())

    async def _give_back(self, unstarted: Sequence[OutboxRow]) -> None:
        await give_back(unstarted, self._claim_lane, self._monitor, self._announce)
