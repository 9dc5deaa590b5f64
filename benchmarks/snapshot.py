"""Churn while another connection holds a snapshot, so that nothing that dies can be removed."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import asyncpg

from benchmarks.aims import CHURN
from benchmarks.measure import Usage
from benchmarks.outbox import LEASE_SECONDS, QUEUE, Outbox, WatchedCursor
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox.storage import Ack, Settlement, StoreLane

BATCH: Final = 500
# Each stretch on the table that ages is followed by a short one on a table that was just emptied. Short, because the
# time between sweeps goes on meanwhile.
SLICE_SECONDS: Final = 1.0
FRESH_SHARE: Final = 0.25
WINDOW_SECONDS: Final = 10.0

SECONDS: Final[dict[Scale, float]] = {"tiny": 0.4, "quick": 60.0, "full": 60.0}
# Whether each claim restarts: that is how it would be without the watermark, and takes as long again.
WAYS: Final = {"watermark": False, "restart before each claim": True}


@dataclass(frozen=True, slots=True)
class Churned:
    """What was done in a stretch of time."""

    messages: int
    usage: Usage
    sweep_seconds: float

    def __add__(self, other: "Churned") -> "Churned":
        return Churned(
            self.messages + other.messages, self.usage + other.usage, self.sweep_seconds + other.sweep_seconds
        )

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.usage.seconds if self.messages else 0.0

    @property
    def postgres_us(self) -> float | None:
        """What a message cost the server."""
        return self.usage.postgres_us / self.messages if self.usage.postgres_us is not None and self.messages else None

    @property
    def sweep_share(self) -> float:
        """The share of the time that went into claims that swept."""
        return self.sweep_seconds / self.usage.seconds if self.messages else 0.0


NOTHING: Final = Churned(0, Usage(), 0.0)


@dataclass(frozen=True, slots=True)
class Slice:
    """What was done on the table that ages, and right after it on one that has no past."""

    aged: Churned = NOTHING
    fresh: Churned = NOTHING

    def __add__(self, other: "Slice") -> "Slice":
        return Slice(self.aged + other.aged, self.fresh + other.fresh)

    @property
    def ratio(self) -> float:
        """The rate on the one against the rate on the other: what the machine is busy with cancels out."""
        return self.aged.rate / self.fresh.rate if self.fresh.rate else 0.0


class Churn:
    """Publishes, claims and settles in turn, on a table of its own."""

    def __init__(self, outbox: Outbox, lane: StoreLane, *, restart: bool) -> None:
        self._outbox = outbox
        self._lane = lane
        self._restart = restart
        self._rows = outbox.new_rows(BATCH)
        self._cursor = WatchedCursor([QUEUE])

    async def go_on(self, seconds: float) -> Churned:
        """Churn for so long."""
        meter = self._outbox.bench.meter
        messages, sweeping = 0, 0.0
        before = await meter.read()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            await self._outbox.publish(self._rows)
            if self._restart:
                self._cursor.restart()
            began = time.perf_counter()
            rows = (await self._lane.claim(self._cursor, limit=BATCH, lease_seconds=LEASE_SECONDS)).rows
            sweeping += time.perf_counter() - began if self._cursor.swept else 0.0
            messages += len((await self._lane.settle([Settlement(row.lease, Ack()) for row in rows])).held)
        return Churned(messages, await meter.since(before), sweeping)

    async def forget(self) -> None:
        """Begin anew on an empty table."""
        await self._outbox.bench.control.execute(f"TRUNCATE {self._outbox.name}")
        self._cursor = WatchedCursor([QUEUE])


@asynccontextmanager
async def held_snapshot(bench: Bench) -> AsyncIterator[None]:
    """Keep everything that dies meanwhile from being removed."""
    holder = await asyncpg.connect(bench.database.dsn)
    try:
        async with holder.transaction(isolation="repeatable_read"):
            await holder.fetchval("SELECT 1")  # from here on its snapshot is held
            yield
    finally:
        await holder.close()


async def churn(bench: Bench, driver: str, seconds: float, *, restart: bool) -> list[Slice]:
    """Churn for so long under a snapshot that was taken before."""
    slices: list[Slice] = []
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(bench.engine(driver))
        churns = []
        for name in ("snapshot_aged", "snapshot_fresh"):
            outbox = Outbox(bench, engine, name)
            await outbox.create()
            churns.append(Churn(outbox, await stack.enter_async_context(outbox.lane()), restart=restart))
        aged, fresh = churns
        await stack.enter_async_context(held_snapshot(bench))
        step = min(SLICE_SECONDS, seconds / 4)
        spent = 0.0
        while spent < seconds:
            bench.say(f"{driver}, {'restarting' if restart else 'watermark'}, {spent:.0f} of {seconds:g} s")
            done = await aged.go_on(step)
            await fresh.forget()
            slices.append(Slice(done, await fresh.go_on(step * FRESH_SHARE)))
            spent += done.usage.seconds
    return slices


def between(slices: list[Slice], begin: float, end: float) -> Slice:
    """Add up the slices that began in a stretch of the time that the ageing table had."""
    total, at = Slice(), 0.0
    for piece in slices:
        if begin <= at < end:
            total += piece
        at += piece.aged.usage.seconds
    return total


COLUMNS: Final[dict[str, Callable[[Slice], float | None]]] = {
    "msg/s": lambda part: part.aged.rate,
    "msg/s ÷ those on an empty table": lambda part: part.ratio,
    "Postgres µs": lambda part: part.aged.postgres_us,
    "share of sweeps": lambda part: part.aged.sweep_share,
}


async def run(bench: Bench) -> list[Result]:
    """Churn through each driver; through the first one only when time is short."""
    drivers = bench.drivers if bench.scale == "full" else bench.drivers[:1]
    return [await measure(bench, driver) for driver in drivers]


async def measure(bench: Bench, driver: str) -> Result:
    """Churn with the watermark, then, unless time is short, without it."""
    seconds = bench.seconds or SECONDS[bench.scale]
    window = min(WINDOW_SECONDS, seconds / 2)
    parts = min(6, max(2, round(seconds / 5)))
    edges = [seconds * part / parts for part in range(parts + 1)]
    lines: Lines = {}
    targets = []
    for case, restart in WAYS.items():
        if restart and bench.scale == "quick":
            continue
        slices = await churn(bench, driver, seconds, restart=restart)
        stretches = {f"{begin:g} to {end:g} s": between(slices, begin, end) for begin, end in pairwise(edges)}
        first, last = between(slices, 0, window), between(slices, seconds - window, seconds)
        for what, of in COLUMNS.items():
            begun, ended = of(first), of(last)
            lines[f"{case}: {what}"] = {
                **{name: of(part) for name, part in stretches.items()},
                "last ÷ first": ended / begun if ended and begun else None,
            }
        if not restart:
            what = f"{driver}, the last {window:g} s ÷ the first {window:g} s, both against an empty table"
            targets.append(CHURN.target(what, last.ratio / first.ratio))
    note = (
        f"{BATCH} rows are published, claimed and settled in turn, as fast as it goes, for {seconds:g} s in each way. "
        f"After each {SLICE_SECONDS:g} s the same is done on a table that was just emptied: what the machine gives."
    )
    return Result(f"held snapshot, {driver}", lines, note, targets)


SCENARIO: Final = Scenario("snapshot", "churn while another connection holds a snapshot", run)
