"""Several lanes that claim from one queue side by side; every row reaches exactly one of them."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.measure import Spread, Usage, ratios
from benchmarks.outbox import LEASE_SECONDS, QUEUE, Outbox, check_once
from benchmarks.results import Lines, Result, per_message
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox.storage import Ack, ClaimCursor, Settlement, StoreLane

LANES: Final = (1, 4, 16)
BATCH: Final = 100
# How often in a row a lane may find nothing while others still hold what is left.
PATIENCE: Final = 200


@dataclass(frozen=True, slots=True)
class Sizes:
    """The backlog, and how often it is shared out."""

    backlog: int
    rounds: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(3_000, rounds=1),
    "quick": Sizes(10_000, rounds=3),
    "full": Sizes(20_000, rounds=5),
}


@dataclass(frozen=True, slots=True)
class Shared:
    """What it cost to share a backlog out, and how many claims came back empty."""

    usage: Usage
    claims: int
    empty: int


async def share(bench: Bench, driver: str, lanes: int, backlog: int) -> Shared:
    """Let each lane claim and settle until the backlog is gone."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(bench.engine(driver, connections=lanes + 1))
        outbox = Outbox(bench, engine, "fanout")
        await outbox.create()
        await outbox.publish(outbox.new_rows(backlog))
        connections = [await stack.enter_async_context(outbox.lane()) for _ in range(lanes)]
        seen: list[int] = []
        before = await bench.meter.read()
        counts = await asyncio.gather(*(_work(lane, seen, backlog) for lane in connections))
        usage = await bench.meter.since(before)
        check_once(seen, backlog)
    return Shared(usage, sum(claims for claims, _ in counts), sum(empty for _, empty in counts))


async def _work(lane: StoreLane, seen: list[int], backlog: int) -> tuple[int, int]:
    cursor = ClaimCursor([QUEUE])
    claims = empty = in_vain = 0
    while len(seen) < backlog and in_vain < PATIENCE:
        claimed = (await lane.claim(cursor, limit=BATCH, lease_seconds=LEASE_SECONDS)).rows
        claims += 1
        if not claimed:
            empty, in_vain = empty + 1, in_vain + 1
            continue
        in_vain = 0
        seen += [row.id for row in claimed]
        await lane.settle([Settlement(row.lease, Ack()) for row in claimed])
    return claims, empty


async def run(bench: Bench) -> list[Result]:
    """Share out the same backlog among more and more lanes."""
    return [await measure(bench, driver) for driver in bench.drivers]


async def measure(bench: Bench, driver: str) -> Result:
    """Share out through one driver."""
    sizes = SIZES[bench.scale]
    cases = {_case(lanes): partial(share, bench, driver, lanes, sizes.backlog) for lanes in LANES}
    measured = await bench.interleave(driver, cases, rounds=sizes.rounds)
    alone = [sizes.backlog / shared.usage.seconds for shared in measured[_case(LANES[0])]]
    lines: Lines = {}
    for case, runs in measured.items():
        rates = [sizes.backlog / shared.usage.seconds for shared in runs]
        lines[case] = {
            "msg/s": Spread.of(rates),
            "ratio": ratios(rates, alone),
            **per_message([shared.usage for shared in runs], sizes.backlog),
            "rows per claim": Spread.of([sizes.backlog / shared.claims for shared in runs]),
            "empty claims": Spread.of([shared.empty for shared in runs]),
        }
    note = (
        f"{sizes.backlog:,} rows, claimed and settled {BATCH} at a time by lanes of one process; each row was claimed "
        "exactly once. Ratios are to one lane."
    )
    return Result(f"fan-out, {driver}", lines, note)


def _case(lanes: int) -> str:
    return f"{lanes} lane{'s' * (lanes > 1)}"


SCENARIO: Final = Scenario("fanout", "1, 4 and 16 lanes claim from one queue side by side", run)
