"""A claim of 100 keys, for different contents of the table."""

import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.keyed import ORDERINGS, SHARDS, Claimer, rows_of, rows_with_keys, shards_of
from benchmarks.measure import Spread, Usage, ratios, spread
from benchmarks.outbox import QUEUE, Outbox, loaded
from benchmarks.results import Lines, Result, Target, number
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox.storage import NewRow
from faststream_outbox.storage.ordering import HashShards, Ordering, Run
from faststream_outbox.storage.ordering.key_cursor import MOST_VISITS

KEYS: Final = 100
# More than any round takes that is counted.
MOST_CLAIMS: Final = 2_000
TARGET: Final = 1.3
# With so many claimers, each has this share of the shards.
SHARING: Final = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is in the tables, and how often each has its turn."""

    backlogs: tuple[int, ...]
    hot: int
    parked: int
    # How many claims make a turn: few enough that those of the smallest table seldom come to its end.
    claims: int
    rounds: int
    warmup: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes((1_200, 1_500), hot=300, parked=600, claims=2, rounds=1, warmup=0),
    "quick": Sizes((10_000, 100_000, 1_000_000), hot=200_000, parked=100_000, claims=5, rounds=8, warmup=1),
    "full": Sizes((10_000, 100_000, 1_000_000), hot=200_000, parked=100_000, claims=5, rounds=20, warmup=1),
}


@dataclass(frozen=True, slots=True)
class Content:
    """What a table holds: so many rows with these columns, one load after the other."""

    case: str
    table: str
    loads: Sequence[tuple[int, str, str]]


def contents(sizes: Sizes) -> list[Content]:
    """Describe the tables: few rows, which the others are compared with, and those others."""
    keyed = rows_with_keys()
    few = sizes.backlogs[0]
    hot = ("queue, entity_key", f"'{QUEUE}', '7 hot'")
    # Two rows of each: a first one that is parked, and one behind it.
    parked = (
        "queue, entity_key, next_attempt_at",
        f"'{QUEUE}', md5('parked ' || n / 2), CASE WHEN n % 2 = 0 THEN 'infinity' ELSE now() END",
    )
    backlogs = [Content(f"{number(rows)} rows", f"keys_{rows}", [(rows, *keyed)]) for rows in sizes.backlogs]
    return [
        *backlogs,
        Content(f"{number(few)} and a key of {number(sizes.hot)}", "keys_hot", [(sizes.hot, *hot), (few, *keyed)]),
        Content(
            f"{number(few)} among {number(sizes.parked)} parked keys",
            "keys_parked",
            [(2 * sizes.parked, *parked), (few, *keyed)],
        ),
    ]


def claimers() -> dict[str, tuple[Ordering, list[int]]]:
    """Name the claimers: one of each strategy, and one that has to leave most of the shards to others."""
    alone = {name: (ordering, shards_of(0, 1)) for name, ordering in ORDERINGS.items()}
    share = shards_of(0, SHARING)
    return {**alone, f"HashShards ({len(share)} of {SHARDS})": (HashShards(count=SHARDS), share)}


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one table: how long a claim took, what all of them used up and brought."""

    claim_ms: float
    usage: Usage
    claims: int
    keys: int
    rows: int

    @property
    def postgres_us(self) -> float | None:
        """What a claim cost the server."""
        spent = self.usage.postgres_us
        return None if spent is None else spent / self.claims


class Table:
    """A table that is claimed from, settled and refilled, so that it stays as full as it was."""

    def __init__(self, outbox: Outbox, claimer: Claimer) -> None:
        self._outbox = outbox
        self._claimer = claimer

    async def turn(self, count: int) -> Turn:
        """Claim a few times; then settle and refill, unmeasured."""
        meter = self._outbox.bench.meter
        before = await meter.read()
        claims = [await self._claim() for _ in range(count)]
        usage = await meter.since(before)
        runs = [run for _, brought, _ in claims for run in brought]
        await self._refill(runs)
        # A claim that came to the last key may have had little to do.
        whole = [took for took, _, ended in claims if not ended]
        claim_ms = statistics.median(whole or [took for took, _, _ in claims])
        return Turn(claim_ms, usage, count, len(runs), len(rows_of(runs)))

    async def whole_round(self) -> int:
        """Go from the first key to the last, and tell how many claims that takes."""
        await self._to_the_end()  # of the round that the turns began
        return await self._to_the_end()

    async def _to_the_end(self) -> int:
        runs: list[Run] = []
        for count in range(1, MOST_CLAIMS):
            _, brought, ended = await self._claim()
            runs += brought
            if ended:
                await self._refill(runs)
                return count
        raise AssertionError(f"No round through {self._outbox.name} ends in {MOST_CLAIMS} claims.")

    async def _claim(self) -> tuple[float, list[Run], bool]:
        began = time.perf_counter()
        claim = await self._claimer.claim(KEYS)
        return 1e3 * (time.perf_counter() - began), claim.runs, self._claimer.ended

    async def _refill(self, runs: list[Run]) -> None:
        await self._claimer.settle(runs)
        rows = sorted(rows_of(runs), key=lambda row: row.id)
        await self._outbox.publish(
            [NewRow(row.queue, row.payload, key=row.entity_key, headers=row.headers) for row in rows]
        )


async def run(bench: Bench) -> list[Result]:
    """Load all tables, then let each driver claim from them in turns."""
    tables = contents(SIZES[bench.scale])
    async with loaded(bench, tables):
        return [await measure(bench, driver, tables) for driver in bench.drivers]


async def measure(bench: Bench, driver: str, tables: Sequence[Content]) -> Result:
    """Claim through one driver."""
    sizes = SIZES[bench.scale]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(bench.engine(driver, connections=len(tables) + 1))
        outboxes = {content.case: Outbox(bench, engine, content.table) for content in tables}
        lanes = {case: await stack.enter_async_context(outbox.lane()) for case, outbox in outboxes.items()}
        cases = {
            f"{name}, {case}": Table(outbox, Claimer(lanes[case], *which))
            for name, which in claimers().items()
            for case, outbox in outboxes.items()
        }
        turns = {case: partial(table.turn, sizes.claims) for case, table in cases.items()}
        measured = await bench.interleave(driver, turns, rounds=sizes.rounds, warmup=sizes.warmup)
        bench.say(f"{driver}, whole rounds")
        few, parked = tables[0].case, tables[-1].case
        rounds = {
            case: await table.whole_round()
            for case, table in cases.items()
            if case.endswith((f", {few}", f", {parked}"))
        }
    lines: Lines = {}
    targets = []
    for name in claimers():
        first = measured[f"{name}, {few}"]
        for content in tables:
            case = f"{name}, {content.case}"
            turns_of = measured[case]
            ratio = ratios([turn.claim_ms for turn in turns_of], [turn.claim_ms for turn in first])
            lines[case] = {
                "claim, ms": Spread.of([turn.claim_ms for turn in turns_of]),
                "ratio": ratio,
                "Postgres µs": spread([turn.postgres_us for turn in turns_of]),
                "ratio of these": ratios([turn.postgres_us for turn in turns_of], [turn.postgres_us for turn in first]),
                "statements": Spread.of([turn.usage.statements / turn.claims for turn in turns_of]),
                "keys": Spread.of([turn.keys / turn.claims for turn in turns_of]),
                "rows": Spread.of([turn.rows / turn.claims for turn in turns_of]),
                "WAL B a key": spread([turn.usage.wal_bytes / turn.keys for turn in turns_of if turn.keys]),
                "claims a round": rounds.get(case),
            }
            if content is not tables[0] and ratio is not None:
                targets.append(Target(f"{driver}, {case}", ratio.median, at_most=TARGET))
    note = (
        f"In each of {sizes.rounds} rounds every claimer has its turn at every table: {sizes.claims} claims, each of "
        f"up to {KEYS} keys with all of their rows. Ratios are to the same claimer on the first table, round by round. "
        f"A claim looks at {MOST_VISITS} keys at most: where most are parked, or in shards of others, it comes back "
        "with fewer than it was asked for, and a round from the first key to the last takes more claims."
    )
    return Result(f"claim of {KEYS} keys, {driver}", lines, note, targets)


SCENARIO: Final = Scenario("keys", f"a claim of {KEYS} keys, for different contents of the table", run)
