"""A consumer: claims, pretends to handle, renews or forgets to, settles, gives rows back, and is killed."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from faststream_outbox.storage import (
    Ack,
    Claim,
    ClaimCursor,
    Dead,
    Lease,
    OutboxRow,
    Outcome,
    Retry,
    SettleInterruptedError,
    Settlement,
    StoreLane,
)
from tests.soak.encoding import claimed_row, uid, verb_of
from tests.soak.history import Answered, Ask, Asked, Claimed, Claiming, Crashed, Ended, Started, Verb
from tests.soak.process import OPERATION_SECONDS, SoakProcess
from tests.soak.settings import QUEUES, Settings

MAX_RUNNING: Final = 16
MAX_ATTEMPTS: Final = 4
# A settle whose answer was lost is sent again; a row that this does not help becomes a suspect.
SETTLE_TRIES: Final = 5
STOP_SECONDS: Final = 5.0
VISIT_SECONDS: Final = 2.0


@dataclass(slots=True)
class Running:
    """A row whose handler runs, or whose outcome is not written yet."""

    row: OutboxRow
    renew_from: float
    outcome: Outcome | None = None
    tries: int = 0


class Question(NamedTuple):
    """An operation that was logged as asked; its leases, and the names of their rows."""

    call: str
    names: dict[Lease, str]


class Worker(SoakProcess):
    """Claims on one lane, settles on another, renews on a third; a fourth comes and goes."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        self.cursor = ClaimCursor(QUEUES)
        self.running: dict[Lease, Running] = {}
        self.to_release: list[OutboxRow] = []
        self.handlers: set[asyncio.Task[None]] = set()
        self._give_up_at = math.inf

    async def work(self) -> None:
        """Run all lanes until told to stop, and then until what runs is settled."""
        async with asyncio.TaskGroup() as lanes:
            lanes.create_task(self._lane("claim", self.claim, until=lambda: self._done(self.to_release)))
            lanes.create_task(self._lane("settle", self.settle, until=lambda: self._done(self.running)))
            lanes.create_task(self._lane("renew", self.renew, until=lambda: self._done(self.running)))
            lanes.create_task(self.keep("visit", self.visit, until=lambda: self.over or self.calm.is_set()))
            await self._wait_for_the_end()
        for handler in self.handlers:
            handler.cancel()

    async def _wait_for_the_end(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self.settings.until - time.monotonic())):
                await self.calm.wait()
                await self._last_visit()
                await self.stopping.wait()
        self._give_up_at = time.monotonic() + STOP_SECONDS

    async def _last_visit(self) -> None:
        """Find the way to a server that is left alone now, while the other lanes keep their good connections."""
        deadline = time.monotonic() + VISIT_SECONDS
        while True:
            try:
                await self.visit()
            except Exception as error:  # noqa: BLE001 - any of them may have to do with a connection that is dead
                if time.monotonic() > deadline:
                    text = f"no connection within {VISIT_SECONDS:.0f} s, though the server is there: {error!r}"
                    self.history.write(Crashed, text)
                    return
                await asyncio.sleep(0.02)
            else:
                return

    def _done(self, work_left: Collection[object]) -> bool:
        """Whether a lane may close; not before the last visit, which would find its good connection in the pool."""
        return time.monotonic() > self._give_up_at or (self._give_up_at < math.inf and not work_left)

    async def _lane(
        self, name: str, step: Callable[[StoreLane], Awaitable[None]], *, until: Callable[[], bool]
    ) -> None:
        async def use() -> None:
            async with self.store.connect() as lane:
                while not until():
                    async with asyncio.timeout(OPERATION_SECONDS):
                        await step(lane)
                    self.worked(name)

        await self.keep(name, use, until=until)

    async def visit(self) -> None:
        """Use a connection from the pool and give it back, for others to find it dead there."""
        async with asyncio.timeout(OPERATION_SECONDS), self.store.connect() as lane:
            await lane.ping()
        self.worked("visit")
        await self.pause(self.rng.uniform(0.1, 0.3))
        await asyncio.sleep(0.02)

    async def claim(self, lane: StoreLane) -> None:
        """Give back what is to be given back, then take what there is room for."""
        await self.release(lane)
        room = MAX_RUNNING - len(self.running)
        if room > 0 and not self.over:
            await self._claim(lane, self.rng.randint(1, room))
            await self.release(lane)
        if room > 1 and not self.over and (self.calm.is_set() or self.rng.random() < 0.4):
            await self._claim_suspect(lane)
        await asyncio.sleep(self.rng.uniform(0.0, 0.03))

    async def _claim(self, lane: StoreLane, limit: int) -> None:
        call = self._claiming(suspect=False)
        self.take(call, await lane.claim(self.cursor, limit=limit, lease_seconds=self.settings.lease_seconds))

    async def _claim_suspect(self, lane: StoreLane) -> None:
        call = self._claiming(suspect=True)
        self.take(call, await lane.claim_suspect(self.cursor, lease_seconds=self.settings.lease_seconds))

    def _claiming(self, *, suspect: bool) -> str:
        return self.history.write(Claiming, self.history.new_name(), suspect, self.settings.lease_seconds).call

    def take(self, call: str, claim: Claim) -> None:
        """Start handlers for what a claim brought, but for a few rows."""
        self.history.write(Claimed, call, claim.expires_at, list(map(claimed_row, claim.rows)))
        for row in claim.rows:
            if not self.calm.is_set() and self.rng.random() < 0.08:
                self.to_release.append(row)
                continue
            self.running[row.lease] = running = Running(row, self._renew_from())
            handler = asyncio.create_task(self.handle(running))
            self.handlers.add(handler)
            handler.add_done_callback(self.handlers.discard)

    def _renew_from(self) -> float:
        """Most leases are renewed in time, some too late, some never."""
        lease, draw = self.settings.lease_seconds, self.rng.random()
        after = 0.0 if draw < 0.6 else self.rng.uniform(1.1, 1.6) * lease if draw < 0.8 else float("inf")
        return time.monotonic() + after

    async def release(self, lane: StoreLane) -> None:
        """Give rows back; some twice, as one does who did not hear the answer."""
        while rows := list(self.to_release):
            asked = self._ask((row, "release", 0.0) for row in rows)
            self._answer(asked, await lane.release(rows))
            self.to_release = [row for row in rows if self.rng.random() < 0.1]

    async def handle(self, running: Running) -> None:
        """Pretend to handle a row."""
        row = running.row
        self.history.write(Started, uid(row), row.lease.token.hex)
        await self.pause(self._duration())
        outcome = self._outcome(row)
        self.history.write(Ended, uid(row), row.lease.token.hex, isinstance(outcome, Ack))
        running.outcome = outcome

    def _duration(self) -> float:
        lease, draw = self.settings.lease_seconds, self.rng.random()
        slow = self.settings.slow
        if draw > slow:
            return self.rng.uniform(0.0, 0.04)
        return lease * (self.rng.uniform(0.5, 1.0) if draw < slow * 0.3 else self.rng.uniform(1.2, 2.5))

    def _outcome(self, row: OutboxRow) -> Outcome:
        draw = self.rng.random()
        if self.calm.is_set() or draw < 0.7:
            return Ack()
        if draw > 0.95 or row.attempts_count >= MAX_ATTEMPTS:
            return Dead("retry_terminal", "a fault of its own", row.attempts_count + 1)
        return Retry(self.rng.uniform(0.0, 0.4), row.attempts_count + 1)

    async def settle(self, lane: StoreLane) -> None:
        """Write the outcomes that are there, all at once."""
        for lease in [lease for lease, running in self.running.items() if running.tries >= SETTLE_TRIES]:
            del self.running[lease]
        done = {lease: r.outcome for lease, r in self.running.items() if r.outcome is not None}
        if done:
            for lease in done:
                self.running[lease].tries += 1
            await self._settle(lane, done)
        for lease in done:
            self.running.pop(lease, None)
        await asyncio.sleep(self.rng.uniform(0.0, 0.02))

    async def _settle(self, lane: StoreLane, done: dict[Lease, Outcome]) -> None:
        asked = self._ask((self.running[lease].row, *verb_of(outcome)) for lease, outcome in done.items())
        try:
            settled = await lane.settle(Settlement(lease, outcome) for lease, outcome in done.items())
        except SettleInterruptedError as error:
            self._answer(asked, error.settled.held, complete=False)
            for lease in error.settled.held:
                self.running.pop(lease, None)
            raise
        self._answer(asked, settled.held)
        for lease, failure in settled.failed.items():
            self.history.write(Crashed, f"{lease} could not be settled: {failure!r}")

    async def renew(self, lane: StoreLane) -> None:
        """Lengthen the leases whose time has come, lost ones as well: who lost one does not always know it."""
        now, lease_seconds = time.monotonic(), self.settings.lease_seconds
        due = [
            lease
            for lease, r in self.running.items()
            if r.outcome is None and (self.calm.is_set() or now >= r.renew_from)
        ]
        if due:
            asked = self._ask((self.running[lease].row, "renew", lease_seconds) for lease in due)
            self._answer(asked, await lane.renew(due, lease_seconds=lease_seconds))
        await self.pause(lease_seconds / 3)
        await asyncio.sleep(0.02)

    def _ask(self, questions: Iterable[tuple[OutboxRow, Verb, float]]) -> Question:
        question = Question(self.history.new_name(), {})
        asks = []
        for row, verb, seconds in questions:
            question.names[row.lease] = uid(row)
            asks.append(Ask(uid(row), row.lease.token.hex, verb, seconds))
        self.history.write(Asked, question.call, asks)
        return question

    def _answer(self, asked: Question, held: AbstractSet[Lease], *, complete: bool = True) -> None:
        mine = [(asked.names[lease], lease.token.hex) for lease in held if lease in asked.names]
        self.history.write(Answered, asked.call, mine, complete)
        if len(mine) < len(held):
            self.history.write(Crashed, f"an answer about leases that were not asked for: {held - set(asked.names)}")
