"""A claim of 100 rows, for different contents of the table."""

import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from benchmarks.aims import CLAIM_LEASES, CLAIM_READY, CLAIM_TIMERS, Aim
from benchmarks.measure import Spread, Usage, ratios, spread
from benchmarks.outbox import LEASE_SECONDS, QUEUE, Outbox, WatchedCursor, loaded
from benchmarks.results import Lines, Result, number
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox.storage import Ack, NewRow, OutboxRow, Settlement, StoreLane

LIMIT: Final = 100
# How many claims from the watermark follow the sweep that opens a turn.
STEADY_CLAIMS: Final = 10


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is in the tables, and how often each has its turn."""

    few: int
    many: int
    leased: int
    queues: int
    subscribed: int
    rounds: int
    warmup: int
    many_queues: bool = True


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(few=2_400, many=3_000, leased=1_000, queues=10, subscribed=5, rounds=1, warmup=0),
    "quick": Sizes(
        few=10_000, many=1_000_000, leased=100_000, queues=100, subscribed=40, rounds=6, warmup=1, many_queues=False
    ),
    "full": Sizes(few=10_000, many=1_000_000, leased=100_000, queues=100, subscribed=40, rounds=30, warmup=1),
}


@dataclass(frozen=True, slots=True)
class Content:
    """What a table holds: so many rows with these columns, one load after the other; and what is subscribed to."""

    case: str
    table: str
    loads: Sequence[tuple[int, str, str]]
    queues: Sequence[str] = (QUEUE,)
    # The table of few rows, subscribed to in the same way; None for such a table itself.
    baseline: str | None = "claim_few"
    aim: Aim | None = None


def contents(sizes: Sizes, bench: Bench) -> list[Content]:
    """Describe the tables: few rows, which the others are compared with, and those others."""
    few, many, leased = number(sizes.few), number(sizes.many), number(sizes.leased)
    ready = ("queue", f"'{QUEUE}'")
    timers = (
        "queue, timer_id, next_attempt_at",
        f"'{QUEUE}', 't' || n, now() + interval '1 day' + n * interval '1 second'",
    )
    leases = (
        "queue, next_attempt_at, acquired_at, acquired_token, lease_expires_at, deliveries_count",
        f"'{QUEUE}', now() - interval '1 hour', now(), gen_random_uuid(), now() + interval '1 day', 1",
    )
    spread_out = ("queue", f"'{QUEUE}.' || n % {sizes.queues}")
    subscribed = [f"{QUEUE}.{n}" for n in bench.rng("queues").sample(range(sizes.queues), sizes.subscribed)]
    some = f"{sizes.subscribed} of {sizes.queues} queues"
    behind_timers, behind_leases = [(sizes.many, *timers)], [(sizes.leased, *leases)]
    some_ready = (sizes.few, *ready)
    tables = [
        Content(f"{few} ready", "claim_few", [some_ready], baseline=None),
        Content(f"{many} ready", "claim_many", [(sizes.many, *ready)], aim=CLAIM_READY),
        Content(f"{few} ready, {many} timers", "claim_timers", [*behind_timers, some_ready], aim=CLAIM_TIMERS),
        Content(f"{few} ready behind {leased} leases", "claim_leases", [*behind_leases, some_ready], aim=CLAIM_LEASES),
    ]
    queues = [
        # Many queues are many ranges of the index, so these two are a pair of their own.
        Content(f"{few} ready, {some}", "claim_few_queues", [(sizes.few, *spread_out)], subscribed, baseline=None),
        Content(f"{many} ready, {some}", "claim_queues", [(sizes.many, *spread_out)], subscribed, "claim_few_queues"),
    ]
    return [*tables, *queues] if sizes.many_queues else tables


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one table: the time of a claim that swept, and what those that followed took and used up."""

    sweep_ms: float
    steady_ms: float
    # None when one of them was a sweep as well: then their usage cannot be separated.
    steady: Usage | None

    @property
    def postgres_us(self) -> float | None:
        """What a claim cost the server."""
        spent = None if self.steady is None else self.steady.postgres_us
        return None if spent is None else spent / STEADY_CLAIMS


class Table:
    """A table that is claimed from, settled and refilled, so that it stays as full as it was."""

    def __init__(self, outbox: Outbox, lane: StoreLane, queues: Sequence[str]) -> None:
        self._outbox = outbox
        self._lane = lane
        self._cursor = WatchedCursor(queues)

    async def turn(self) -> Turn:
        """Sweep once, claim a few times from the watermark; then settle and refill, unmeasured."""
        meter = self._outbox.bench.meter
        rows: list[OutboxRow] = []
        self._cursor.restart()
        sweep_ms = await self._claim(rows)
        before = await meter.read()
        times = [(await self._claim(rows), self._cursor.swept) for _ in range(STEADY_CLAIMS)]
        usage = await meter.since(before)
        steady = [took for took, swept in times if not swept]
        await self._lane.settle([Settlement(row.lease, Ack()) for row in rows])
        await self._outbox.publish([NewRow(row.queue, row.payload, headers=row.headers) for row in rows])
        return Turn(sweep_ms, statistics.median(steady or [sweep_ms]), usage if len(steady) == STEADY_CLAIMS else None)

    async def _claim(self, rows: list[OutboxRow]) -> float:
        began = time.perf_counter()
        claim = await self._lane.claim(self._cursor, limit=LIMIT, lease_seconds=LEASE_SECONDS)
        took = time.perf_counter() - began
        if len(claim.rows) != LIMIT:
            raise AssertionError(f"{LIMIT} rows were asked of {self._outbox.name}, which gave {len(claim.rows)}.")
        rows += claim.rows
        return 1e3 * took


async def run(bench: Bench) -> list[Result]:
    """Load all tables, then let each driver claim from them in turns."""
    tables = contents(SIZES[bench.scale], bench)
    async with loaded(bench, tables):
        return [await measure(bench, driver, tables) for driver in bench.drivers]


async def measure(bench: Bench, driver: str, tables: Sequence[Content]) -> Result:
    """Claim through one driver."""
    sizes = SIZES[bench.scale]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(bench.engine(driver, connections=len(tables) + 1))
        cases = {}
        for content in tables:
            outbox = Outbox(bench, engine, content.table)
            lane = await stack.enter_async_context(outbox.lane())
            cases[content.case] = Table(outbox, lane, content.queues).turn
        measured = await bench.interleave(driver, cases, rounds=sizes.rounds, warmup=sizes.warmup)
    turns_of = {content.table: measured[content.case] for content in tables}
    lines: Lines = {}
    targets = []
    for content in tables:
        turns, first = turns_of[content.table], turns_of[content.baseline or content.table]
        ratio = ratios([turn.steady_ms for turn in turns], [turn.steady_ms for turn in first])
        lines[content.case] = {
            "claim, ms": Spread.of([turn.steady_ms for turn in turns]),
            "ratio": ratio,
            "Postgres µs": spread([turn.postgres_us for turn in turns]),
            "ratio of these": ratios([turn.postgres_us for turn in turns], [turn.postgres_us for turn in first]),
            "WAL B a row": spread([turn.steady.wal_bytes / STEADY_CLAIMS / LIMIT for turn in turns if turn.steady]),
            "sweep, ms": Spread.of([turn.sweep_ms for turn in turns]),
            "ratio of sweeps": ratios([turn.sweep_ms for turn in turns], [turn.sweep_ms for turn in first]),
        }
        if content.aim is not None and ratio is not None:
            targets.append(content.aim.target(f"{driver}, {content.case}", ratio.median))
    note = (
        f"In each of {sizes.rounds} rounds every table has its turn: a sweep, then {STEADY_CLAIMS} claims from the "
        "watermark. Ratios are to the line with few rows and as many queues, round by round."
    )
    return Result(f"claim of {LIMIT} rows, {driver}", lines, note, targets)


SCENARIO: Final = Scenario("claim", f"a claim of {LIMIT} rows, for different contents of the table", run)
