"""Settling in batches against settling row by row, for each kind of outcome."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.measure import Spread, Usage, ratios
from benchmarks.outbox import LEASE_SECONDS, QUEUE, Outbox
from benchmarks.results import Lines, Result, per_message
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox.storage import Ack, ClaimCursor, Dead, Outcome, Retry, Settlement, StoreLane

OUTCOMES: Final[dict[str, Outcome]] = {
    "ack": Ack(),
    "retry": Retry(delay_seconds=3600, attempts_count=1),
    "dead letter": Dead("retry_terminal", last_exception="ValueError: no such order\n" * 10, attempts_count=5),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows are settled in one turn of each batch size."""

    rows: dict[int, int]
    rounds: int
    warmup: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes({1: 10, 100: 100}, rounds=1, warmup=0),
    "quick": Sizes({1: 100, 100: 1_000, 500: 2_000}, rounds=5, warmup=1),
    "full": Sizes({1: 500, 100: 5_000, 500: 5_000}, rounds=7, warmup=1),
}


async def settle(outbox: Outbox, lane: StoreLane, outcome: Outcome, count: int, batch: int) -> Usage:
    """Publish and claim rows, unmeasured, then settle them all alike."""
    await outbox.publish(outbox.new_rows(count))
    rows = (await lane.claim(ClaimCursor([QUEUE]), limit=count, lease_seconds=LEASE_SECONDS)).rows
    before = await outbox.bench.meter.read()
    held = 0
    for start in range(0, len(rows), batch):
        settled = await lane.settle([Settlement(row.lease, outcome) for row in rows[start : start + batch]])
        held += len(settled.held)
    usage = await outbox.bench.meter.since(before)
    if held != count:
        raise AssertionError(f"{held} rows of {count} were settled.")
    return usage


async def run(bench: Bench) -> list[Result]:
    """Settle through each driver."""
    return [await measure(bench, driver) for driver in bench.drivers]


async def measure(bench: Bench, driver: str) -> Result:
    """Let outcomes and batch sizes take turns, each outcome on a table of its own."""
    sizes = SIZES[bench.scale]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(bench.engine(driver, connections=len(OUTCOMES) + 1))
        cases = {}
        for kind, outcome in OUTCOMES.items():
            outbox = Outbox(bench, engine, f"settle_{kind.replace(' ', '_')}")
            await outbox.create()
            lane = await stack.enter_async_context(outbox.lane())
            for batch, count in sizes.rows.items():
                cases[_case(kind, batch)] = partial(settle, outbox, lane, outcome, count, batch)
        measured = await bench.interleave(driver, cases, rounds=sizes.rounds, warmup=sizes.warmup)
    lines: Lines = {}
    for kind in OUTCOMES:
        single = [sizes.rows[1] / usage.seconds for usage in measured[_case(kind, 1)]]
        for batch, count in sizes.rows.items():
            usages = measured[_case(kind, batch)]
            rates = [count / usage.seconds for usage in usages]
            lines[_case(kind, batch)] = {
                "msg/s": Spread.of(rates),
                "ratio": ratios(rates, single),
                **per_message(usages, count),
            }
    return Result(f"settle, {driver}", lines, "Ratios are to the same outcome row by row.")


def _case(kind: str, batch: int) -> str:
    return f"{kind}, row by row" if batch == 1 else f"{kind}, batches of {batch}"


SCENARIO: Final = Scenario("settle", "acks, retries and dead letters, in batches against row by row", run)
