"""Claims one row when somebody asks for one, and settles what the caller decides."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from faststream_outbox.engine.claim.idle_wait import IdleWait
from faststream_outbox.engine.claim.key_claims import KeyClaims
from faststream_outbox.engine.claim.lease_renewer import LeaseRenewer
from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.engine.options import OnDead, give_up
from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.engine.settle.settle_buffer import SettleBuffer
from faststream_outbox.engine.settle.settler import Settler
from faststream_outbox.engine.shutdown import Shutdown, give_back, in_time
from faststream_outbox.runtime.loop import Backoff
from faststream_outbox.runtime.telemetry import Monitor, RowEvents, describe
from faststream_outbox.storage import (
    Claim,
    ClaimCursor,
    Dead,
    Lease,
    OutboxRow,
    Outcome,
    Settlement,
    Store,
    StoreConnection,
)
from faststream_outbox.storage.ordering import HashShards, Ordering, RunClaim
from faststream_outbox.wakeup.wakeup import Announce


class Puller:
    """Nothing is claimed that nobody asked for; a row that was handed out is renewed until it is settled.

    Example:
        held = await puller.pull(timeout=5.0)
        if held is not None:
            await puller.settle(held.lease, Ack())

    """

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        *,
        lease_seconds: float = 60.0,
        min_interval: float = 0.5,
        max_interval: float = 10.0,
        max_deliveries: int | None = None,
        on_dead: OnDead = "skip",
        ordering: Ordering | None = None,
        monitor: Monitor | None = None,
        announce: Announce | None = None,
    ) -> None:
        self._monitor = monitor or Monitor()
        self._journal = RowEvents(self._monitor, keeps_dead=store.keeps_dead)
        self._announce = announce
        self._cursor = ClaimCursor(queues)
        # Whoever takes one row now and then holds no shards, and looks at all of them.
        whole = None if isinstance(ordering, HashShards) else ordering
        self._keys = KeyClaims(self._cursor.queues, rows_per_key=1, lease_seconds=lease_seconds, ordering=whole)
        self._heads_next = False
        self._lease_seconds = lease_seconds
        self._max_deliveries = max_deliveries
        self._on_dead: OnDead = on_dead
        self._suspects_every = min(max_interval, lease_seconds / 10)
        self._suspects_at = time.monotonic() + self._suspects_every
        self._ledger = Ledger()
        self._claim_lane, self._settle_lane = ReconnectingLane(store), ReconnectingLane(store)
        self._idle_wait = IdleWait(min_interval=min_interval, max_interval=max_interval)
        self._settler = Settler(
            self._settle_lane,
            self._ledger,
            self._journal,
            # The caller waits for each outcome to be written, so none waits for company.
            terminal=SettleBuffer(batch_size=1, flush_interval=0.0),
            retry=SettleBuffer(batch_size=1, flush_interval=0.0),
            expect=lambda seconds: self._idle_wait.expect(self._settle_lane.left_of(seconds)),
            announce=announce,
        )
        self._lease_renewer = LeaseRenewer(self._claim_lane, self._ledger, self._monitor, lease_seconds=lease_seconds)
        self._turn = asyncio.Lock()
        self._backoff = Backoff()
        self._started = False
        self._shutdown = Shutdown()
        self._late: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Say that rows may have come."""
        self._idle_wait.wake()

    async def pull(self, timeout: float | None = None) -> OutboxRow | None:  # noqa: ASYNC109 - as FastStream's get_one has it
        """Wait for a row; None when none came in time, or when the puller is stopped."""
        try:
            async with asyncio.timeout(timeout), self._turn:
                return await self._next()
        except TimeoutError:
            return None

    async def settle(self, lease: Lease, outcome: Outcome) -> None:
        """Write what became of a row, and return when it is written; the first outcome stands."""
        held = self._ledger.find(lease)
        if held is not None and held.ended_at is None:
            self._ledger.finish([held])
            self._settler.put(Settlement(lease, outcome))
        await self._ledger.wait_until_gone(lease)

    async def stop(self) -> None:
        """Claim no more, and give back the rows of which nobody has said anything."""
        await self._shutdown.run(self._end)

    async def _end(self) -> None:
        self._idle_wait.wake()
        await in_time(self._turn.acquire())  # whoever waits for a row comes back without one
        for late in list(self._late):
            await in_time(late)
        undecided = [held for held in self._ledger.all() if held.ended_at is None]
        self._ledger.strike(held.lease for held in undecided)
        for held in undecided:
            self._journal.given_back(held)
        await give_back(undecided, self._claim_lane, self._monitor, self._announce)
        if self._started:
            await in_time(self._settler.flush())
        for part in (self._settler, self._lease_renewer):
            await in_time(part.stop())
        for held in self._ledger.strike(self._ledger.leases()):
            self._journal.abandoned(held)
        self._idle_wait.close()
        for link in (self._claim_lane, self._settle_lane):
            await in_time(link.close())

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._settler.start()
            self._lease_renewer.start()

    async def _next(self) -> OutboxRow | None:
        while not self._shutdown.begun:
            self._start()
            self._idle_wait.forget_calls()
            try:
                held = await self._claim_one()
                if held is None:
                    await self._rest()
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller waits for a row, not for the news
                message = f"A row could not be claimed, which is tried again: {describe(error)}"
                self._monitor.report("claim_failed", message, level=logging.ERROR, error=error)
                await self._backoff.wait()
                continue
            self._backoff.reset()
            if held is None or self._shutdown.begun:  # what came too late is still in the ledger, to be given back
                continue
            if self._max_deliveries is None or held.deliveries_count <= self._max_deliveries:
                held.began_at = time.monotonic()
                self._journal.dispatched([held])
                return held
            self._ledger.finish([held])
            self._settler.put(Settlement(held.lease, give_up(held, Dead("max_deliveries"), self._on_dead)))
        return None

    async def _rest(self) -> None:
        due = await self._claim_lane.run(lambda lane: lane.next_due(self._cursor))
        await self._idle_wait.wait(self._keys.sooner(due))

    async def _claim_one(self) -> OutboxRow | None:
        if time.monotonic() >= self._suspects_at and (held := await self._claim_suspect()) is not None:
            return held
        # After a row without a key it is a key's turn: none waits until there are no others.
        heads_first = self._heads_next and self._keys.are_due
        first, second = (self._claim_head, self._claim_row) if heads_first else (self._claim_row, self._claim_head)
        claim = await self._claim(first)
        if not claim.rows:
            claim = await self._claim(second)
        self._heads_next = any(row.entity_key is None for row in claim.rows)
        self._journal.claimed(self._cursor.queues, claim.rows)
        return await self._take(claim) if claim.rows else await self._claim_suspect()

    async def _claim_row(self, lane: StoreConnection) -> Claim:
        return await lane.claim(self._cursor, limit=1, lease_seconds=self._lease_seconds)

    async def _claim_head(self, lane: StoreConnection) -> Claim:
        """Claim the first row of a key; alone, its lease is like any other's."""
        self._keys.restart()
        while True:
            claim = await self._keys.claim(lane, 1, 1)
            if claim.runs or not self._keys.more:
                return _as_rows(claim)

    async def _claim_suspect_head(self, lane: StoreConnection) -> Claim:
        claim = await self._keys.claim_suspect(lane)
        return Claim([], 0.0, more=False) if claim is None else _as_rows(claim)

    async def _claim_suspect(self) -> OutboxRow | None:
        if len(self._ledger):
            return None  # it may end the process, and what else is in hand with it
        self._suspects_at = time.monotonic() + self._suspects_every
        claim = await self._claim(lambda lane: lane.claim_suspect(self._cursor, lease_seconds=self._lease_seconds))
        if not claim.rows and self._keys.have_suspects:
            claim = await self._claim(self._claim_suspect_head)
        if not claim.rows:
            return None
        self._journal.claimed(self._cursor.queues, claim.rows)
        return await self._take(claim)

    async def _take(self, claim: Claim) -> OutboxRow:
        self._idle_wait.shorten()
        self._ledger.add(claim.rows, claim.expires_at)
        self._ledger.admit_all()
        return await self._ledger.take()

    async def _claim(self, operation: Callable[[StoreConnection], Awaitable[Claim]]) -> Claim:
        """Claim; if whoever asked has gone meanwhile, what comes is given back."""
        claiming = asyncio.ensure_future(self._claim_lane.run(operation))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            late = asyncio.create_task(self._give_back_late(claiming))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            raise

    async def _give_back_late(self, claiming: Awaitable[Claim]) -> None:
        try:
            claim = await claiming
        except Exception:  # noqa: BLE001 - nobody waits for it any more, and it brought nothing
            return
        await give_back(claim.rows, self._claim_lane, self._monitor, self._announce)


def _as_rows(claim: RunClaim) -> Claim:
    return Claim([run.rows[0] for run in claim.runs], claim.expires_at, claim.more)
