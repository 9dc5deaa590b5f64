"""The strategies for rows with a key side by side: 1, 4 and 16 claimers share a backlog out, each key in its order."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.fanout import BATCH, Shared, share
from benchmarks.keyed import MEAN_ROWS, ORDERINGS, Claimer, rows_of, rows_with_keys, shards_of
from benchmarks.measure import Spread, ratios
from benchmarks.outbox import Outbox, check_once
from benchmarks.results import Lines, Result, per_message
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox.storage import OutboxRow
from faststream_outbox.storage.ordering import Ordering

# As many keys as have a batch of rows among them, which is what a subscriber asks for.
KEYS: Final = round(BATCH / MEAN_ROWS)
NO_KEYS: Final = "no keys"
FIRST: Final = next(iter(ORDERINGS))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The backlog, among how many claimers it is shared out, and how often."""

    backlog: int
    claimers: tuple[int, ...]
    rounds: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(600, (1, 4), rounds=1),
    "quick": Sizes(10_000, (1, 4, 16), rounds=5),
    "full": Sizes(10_000, (1, 4, 16), rounds=7),
}


async def share_keys(bench: Bench, driver: str, ordering: Ordering, claimers: int, backlog: int) -> Shared:
    """Let each claimer claim and settle until it finds no more."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(bench.engine(driver, connections=claimers + 1))
        outbox = Outbox(bench, engine, "strategies")
        await outbox.create()
        await outbox.load(backlog, *rows_with_keys())
        lanes = [await stack.enter_async_context(outbox.lane()) for _ in range(claimers)]
        each = [Claimer(lane, ordering, shards_of(number, claimers)) for number, lane in enumerate(lanes)]
        seen: list[OutboxRow] = []
        before = await bench.meter.read()
        counts = await asyncio.gather(*(_work(claimer, seen) for claimer in each))
        usage = await bench.meter.since(before)
    check_once([row.id for row in seen], backlog)
    check_order(seen)
    return Shared(usage, sum(claims for claims, _ in counts), sum(empty for _, empty in counts))


async def _work(claimer: Claimer, seen: list[OutboxRow]) -> tuple[int, int]:
    claims = empty = 0
    more = True
    while more:  # until a whole round finds nothing: others hold what is left, and will find it gone themselves
        claim = await claimer.claim(KEYS)
        more, claims = claim.more, claims + 1
        if not claim.runs:
            empty += 1
            continue
        seen += rows_of(claim.runs)
        await claimer.settle(claim.runs)
    return claims, empty


def check_order(seen: list[OutboxRow]) -> None:
    """Refuse a measurement in which a row came after a later one of its key."""
    last: dict[str | None, int] = {}
    for row in seen:
        if row.id < last.get(row.entity_key, row.id):
            raise AssertionError(f"Row {row.id} of key {row.entity_key} came after row {last[row.entity_key]}.")
        last[row.entity_key] = row.id


async def run(bench: Bench) -> list[Result]:
    """Share out the same backlog by each strategy, among more and more claimers."""
    return [await measure(bench, driver) for driver in bench.drivers]


async def measure(bench: Bench, driver: str) -> Result:
    """Share out through one driver."""
    sizes = SIZES[bench.scale]
    keyed = {
        _case(name, claimers): partial(share_keys, bench, driver, ordering, claimers, sizes.backlog)
        for name, ordering in ORDERINGS.items()
        for claimers in sizes.claimers
    }
    plain = {
        _case(NO_KEYS, claimers): partial(share, bench, driver, claimers, sizes.backlog) for claimers in sizes.claimers
    }
    measured = await bench.interleave(driver, keyed | plain, rounds=sizes.rounds)
    rates = {case: [sizes.backlog / shared.usage.seconds for shared in runs] for case, runs in measured.items()}
    lines: Lines = {}
    for claimers in sizes.claimers:
        for name in (*ORDERINGS, NO_KEYS):
            case = _case(name, claimers)
            runs = measured[case]
            lines[case] = {
                "msg/s": Spread.of(rates[case]),
                f"to {FIRST}": ratios(rates[case], rates[_case(FIRST, claimers)]),
                f"to {NO_KEYS}": ratios(rates[case], rates[_case(NO_KEYS, claimers)]),
                **per_message([shared.usage for shared in runs], sizes.backlog),
                "rows per claim": Spread.of([sizes.backlog / shared.claims for shared in runs]),
                "empty claims": Spread.of([shared.empty for shared in runs]),
            }
    note = (
        f"{sizes.backlog:,} rows, 1 to 10 of each key, claimed {KEYS} keys at a time and settled by lanes of one "
        f"process, beside as many rows without keys, claimed {BATCH} at a time. Each row was claimed exactly once, and "
        "after those of its key that came before it. With HashShards each claimer has its share of the shards. "
        "Claimers stop when a whole round through the keys finds nothing; what that takes is counted."
    )
    return Result(f"strategies side by side, {driver}", lines, note)


def _case(name: str, claimers: int) -> str:
    return f"{name}, {claimers} claimer{'s' * (claimers > 1)}"


SCENARIO: Final = Scenario("strategies", "rows with keys, by each strategy, at 1, 4 and 16 claimers", run)
