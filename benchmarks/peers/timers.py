"""A timer, and a retry, due in a second on a queue where nothing else happens: how late they come."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.measure import Spread
from benchmarks.peers.child import Child, Stage
from benchmarks.peers.contestants import (
    ORIGINAL_BEST,
    OURS,
    OURS_DEFAULTS,
    PGQUEUER_BEST,
    PROCRASTINATE_BEST,
    Entry,
    unset,
)
from benchmarks.peers.latency import percentile
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scale, Scenario

DELAY: Final = 1.0
# How late ours may be, in milliseconds, at its 99th percentile.
TARGET: Final = 50.0
# Each has a table and a queue of its own, which is as idle as that of one alone, so that there are enough messages to
# tell a 99th percentile of ours from its worst.
_COPIES: Final = 4
COPIES: Final = tuple(Entry(replace(OURS, table=f"{OURS.table}_{number}")) for number in range(_COPIES))
ENTRIES: Final = (*COPIES, unset(ORIGINAL_BEST), unset(PGQUEUER_BEST), unset(PROCRASTINATE_BEST))
_SETTLE: Final = 0.5
# How often a worker is asked whether a message has come; what it has noted is what counts.
_LOOK_EVERY: Final = 0.05


@dataclass(frozen=True, slots=True)
class Sizes:
    """For how many seconds each is watched, and how many messages it gets at most."""

    seconds: float
    messages: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(seconds=2.0, messages=2),
    "quick": Sizes(seconds=60.0, messages=50),
    "full": Sizes(seconds=240.0, messages=200),
}


async def run(bench: Bench) -> list[Result]:
    """Watch all at once: they sleep nearly all of the time, so they do not disturb each other."""
    sizes = SIZES[bench.scale]
    lines: Lines = {}
    targets = []
    async with Stage(bench) as stage:
        entries, absent = await stage.present(*ENTRIES)
        for what, watch in (("timer", _timers), ("retry", _retries)):
            bench.say(f"peers, a {what} each second or so, for {sizes.seconds:.0f} s")
            late: defaultdict[str, list[float]] = defaultdict(list)
            for entry, values in zip(
                entries,
                await asyncio.gather(*(_watched(stage, entry, watch, sizes) for entry in entries)),
                strict=True,
            ):
                late[str(entry)] += values
            for name, values in late.items():
                lines[f"{what}, {name}"] = {
                    "late, ms": Spread.of(values),
                    "p99, ms": percentile(values, 99),
                    "messages": len(values),
                }
            worst = percentile(late[str(OURS_DEFAULTS)], 99)
            targets.append(Target(f"ours, a {what}'s delay beyond its second, ms at p99", worst, at_most=TARGET))
    note = (
        f"One message at a time, due {DELAY:.0f} s after it was published, or after its handler failed; the next one "
        f"follows when it has come. All are watched at once, ours in {_COPIES} copies, for as long, with their "
        f"defaults and no log; who is late has seen fewer messages.{absent}"
    )
    return [Result("peers: a timer and a retry on an idle queue", lines, note, targets)]


async def _watched(
    stage: Stage, entry: Entry, watch: Callable[[Child, Child, int], Awaitable[float]], sizes: Sizes
) -> list[float]:
    """Send one message after the other, and tell by how many milliseconds each was late."""
    worker, publisher = await stage.child(entry, 0), await stage.child(entry, 1)
    await worker.ask("create")
    failures = 1 if watch is _retries else 0
    await worker.ask(
        "start", expected=-1, failures=failures, retry_after=DELAY, watched=True, options=dict(entry.options)
    )
    await publisher.ask("open", clients=1, warm=False)
    await asyncio.sleep(_SETTLE)
    late: list[float] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + sizes.seconds
    while not late or (loop.time() < end and len(late) < sizes.messages):
        late.append(1000 * await watch(worker, publisher, len(late)))
    await publisher.ask("close")
    await worker.ask("stop")
    return late


async def _timers(worker: Child, publisher: Child, number: int) -> float:
    began = (await publisher.ask("commit", number=number, delay=DELAY))["began"]
    came = (await _times(worker, number, 1))[0]
    return float(came - began - DELAY)


async def _retries(worker: Child, publisher: Child, number: int) -> float:
    await publisher.ask("commit", number=number)
    failed, came = await _times(worker, number, 2)
    return came - failed - DELAY


async def _times(worker: Child, number: int, count: int) -> list[float]:
    """Wait until a message has come so often, and tell when."""
    async with asyncio.timeout(60):
        while True:
            times: list[float] = (await worker.ask("times"))["times"].get(str(number), [])
            if len(times) >= count:
                return times[:count]
            await asyncio.sleep(_LOOK_EVERY)


SCENARIO: Final = Scenario("peers-timers", "how late a timer and a retry come on an idle queue, ours and peers'", run)
