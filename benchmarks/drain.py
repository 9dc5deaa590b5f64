"""One process that drains a backlog: what a message costs from its insert to its end."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.measure import Spread, Usage, ratios, spread
from benchmarks.outbox import LEASE_SECONDS, QUEUE, Outbox, check_once
from benchmarks.results import Lines, Result, per_message
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox.storage import Ack, ClaimCursor, OutboxRow, Settlement, StoreLane

TABLE: Final = "drain"
# Batches that wait between the two lanes: one is settled, one waits, one is claimed.
PREFETCHED: Final = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """The backlogs with the number of rounds in which each is drained, and the sizes of batches."""

    backlogs: dict[int, int]
    batches: tuple[int, ...]
    rounds_of_parts: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes({300: 1}, (100,), rounds_of_parts=1),
    "quick": Sizes({20_000: 3, 100_000: 1}, (100, 500), rounds_of_parts=1),
    "full": Sizes({20_000: 5, 100_000: 2}, (100, 500), rounds_of_parts=3),
}


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain used up, and which share of its updates touched no index."""

    usage: Usage
    hot_ratio: float | None


async def drain(bench: Bench, driver: str, backlog: int, batch: int) -> Drained:
    """Fill a new table, then claim on one lane and settle on another until it is empty."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(bench.engine(driver))
        outbox = Outbox(bench, engine, TABLE)
        await outbox.create()
        await outbox.publish(outbox.new_rows(backlog))
        claims = await stack.enter_async_context(outbox.lane())
        settles = await stack.enter_async_context(outbox.lane())
        settled: list[int] = []
        waiting: asyncio.Queue[list[OutboxRow]] = asyncio.Queue(PREFETCHED)
        before = await bench.meter.read()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_claim_all(claims, waiting, backlog, batch))
            tasks.create_task(_settle_all(settles, waiting, backlog, settled))
        usage = await bench.meter.since(before)
    check_once(settled, backlog)
    return Drained(usage, await bench.meter.hot_ratio(TABLE))


async def _claim_all(lane: StoreLane, waiting: asyncio.Queue[list[OutboxRow]], backlog: int, batch: int) -> None:
    cursor = ClaimCursor([QUEUE])
    while backlog > 0:
        rows = await _claim(lane, cursor, batch)
        backlog -= len(rows)
        await waiting.put(rows)


async def _settle_all(lane: StoreLane, waiting: asyncio.Queue[list[OutboxRow]], backlog: int, seen: list[int]) -> None:
    while len(seen) < backlog:
        rows = await waiting.get()
        settled = await lane.settle([Settlement(row.lease, Ack()) for row in rows])
        seen += [lease.row_id for lease in settled.held]


async def _claim(lane: StoreLane, cursor: ClaimCursor, batch: int) -> list[OutboxRow]:
    rows = (await lane.claim(cursor, limit=batch, lease_seconds=LEASE_SECONDS)).rows
    if not rows:
        raise AssertionError("Rows that are there were not claimed.")
    return rows


@dataclass(frozen=True, slots=True)
class Parts:
    """What the parts of the messages' lives used up."""

    insert: Usage
    claim: Usage
    settle: Usage


async def take_apart(bench: Bench, driver: str, backlog: int, batch: int) -> Parts:
    """Insert, then claim and settle in turn on one lane, and account for each."""
    meter = bench.meter
    claimed, settled = Usage(), Usage()
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(bench.engine(driver))
        outbox = Outbox(bench, engine, TABLE)
        await outbox.create()
        new = outbox.new_rows(backlog)
        before = await meter.read()
        await outbox.publish(new)
        inserted = await meter.since(before)
        del new  # twenty thousand objects less for the collector to walk through while claims are measured
        lane = await stack.enter_async_context(outbox.lane())
        cursor = ClaimCursor([QUEUE])
        while backlog > 0:
            before = await meter.read()
            rows = await _claim(lane, cursor, batch)
            claimed += await meter.since(before)
            before = await meter.read()
            await lane.settle([Settlement(row.lease, Ack()) for row in rows])
            settled += await meter.since(before)
            backlog -= len(rows)
    return Parts(inserted, claimed, settled)


async def run(bench: Bench) -> list[Result]:
    """Drain every backlog in every way, then look at the parts."""
    return [await _whole(bench), await _parts(bench)]


async def _whole(bench: Bench) -> Result:
    sizes = SIZES[bench.scale]
    lines: Lines = {}
    for backlog, rounds in sizes.backlogs.items():
        cases = {
            f"{driver}, {backlog:,} in batches of {batch}": partial(drain, bench, driver, backlog, batch)
            for driver in bench.drivers
            for batch in sizes.batches
        }
        measured = await bench.interleave(f"backlog of {backlog:,}", cases, rounds=rounds)
        rates = {case: [backlog / run.usage.seconds for run in runs] for case, runs in measured.items()}
        for case, runs in measured.items():
            lines[case] = {
                "msg/s": Spread.of(rates[case]),
                "ratio": ratios(rates[case], rates[next(iter(cases))]),
                **per_message([run.usage for run in runs], backlog),
                "HOT": spread([run.hot_ratio for run in runs]),
            }
    note = (
        "One lane claims while another settles. Ratios are to the first line of the same backlog. WAL is that of "
        "claims and settles, and of a vacuum if one came by; HOT is the share of claims that touched no index."
    )
    return Result("drain by one process, payloads of 256 bytes and two headers, no handler", lines, note)


async def _parts(bench: Bench) -> Result:
    sizes = SIZES[bench.scale]
    backlog = min(sizes.backlogs)
    cases = {
        f"{driver}, batches of {batch}": partial(take_apart, bench, driver, backlog, batch)
        for driver in bench.drivers
        for batch in sizes.batches
    }
    measured = await bench.interleave("parts", cases, rounds=sizes.rounds_of_parts)
    lines: Lines = {}
    for case, runs in measured.items():
        for part in ("insert", "claim", "settle"):
            usages = [getattr(run, part) for run in runs]
            lines[f"{case}: {part}"] = {
                "µs": Spread.of([1e6 * usage.seconds / backlog for usage in usages]),
                **per_message(usages, backlog),
            }
    note = "One lane claims and settles in turn. Inserts come 1,000 in a transaction (`insert_many`)."
    return Result(f"the parts of a drain of {backlog:,}, for each message", lines, note)


SCENARIO: Final = Scenario("drain", "one process drains a backlog: what a message costs, and where", run)
