"""A timer, and a retry, due in a second on a queue where nothing else happens: how late they come."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from benchmarks.aims import RETRY, TIMER
from benchmarks.measure import Spread
from benchmarks.peers.child import Child
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
from benchmarks.peers.stage import Stage
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale, Scenario

DELAY: Final = 1.0
AIMS: Final = {"timer": TIMER, "retry": RETRY}
# Each has a table and a queue of its own, which is as idle as that of one alone, so that there are enough messages to
# tell a 99th percentile of ours from its worst.
_COPIES: Final = 4
COPIES: Final = tuple(Entry(replace(OURS, table=f"{OURS.table}_{number}")) for number in range(_COPIES))
ENTRIES: Final = (*COPIES, unset(ORIGINAL_BEST), unset(PGQUEUER_BEST), unset(PROCRASTINATE_BEST))
_SETTLE: Final = 0.5
# How often a row is committed beside them: a claim is a commit, so nobody is earlier than the disk lets it be.
_COMMIT_EVERY: Final = 0.1
# How often a worker is asked whether a message has come; what it has noted is what counts.
_LOOK_EVERY: Final = 0.05


@dataclass(frozen=True, slots=True)
class Sizes:
    """For how many seconds each is watched, and how many messages it gets at most."""

    seconds: float
    messages: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(seconds=2.0, messages=2),
    "quick": Sizes(seconds=14.5, messages=50),
    "full": Sizes(seconds=60.0, messages=100),
}


class Lateness(NamedTuple):
    """By how many milliseconds a message came late as a timer, and then as a retry."""

    timer: float
    retry: float


async def run(bench: Bench) -> list[Result]:
    """Watch all at once: they sleep nearly all of the time, so they do not disturb each other."""
    sizes = SIZES[bench.scale]
    lines: Lines = {}
    targets = []
    async with Stage(bench) as stage:
        entries, absent = await stage.present(*ENTRIES, processes=2)
        bench.say(f"peers, a timer and a retry every two seconds, for {sizes.seconds:.0f} s")
        late: defaultdict[str, list[Lateness]] = defaultdict(list)
        async with _commits(bench) as commits:
            # Not in step, so that one moment in which the disk does not answer meets one of the copies.
            watched = (_watch(stage, entry, sizes, n / _COPIES) for n, entry in enumerate(entries))
            for entry, values in zip(entries, await asyncio.gather(*watched), strict=True):
                late[str(entry)] += values
    for what, aim in AIMS.items():
        lines |= {f"{what}, {name}": _line([getattr(one, what) for one in each]) for name, each in late.items()}
        worst = percentile([getattr(one, what) for one in late[str(OURS_DEFAULTS)]], 99)
        targets.append(aim.target(f"ours, a {what}'s delay beyond its second, ms at p99", worst))
    lines["a commit at that time"] = _line(commits)
    note = (
        f"One message at a time: due {DELAY:.0f} s after it was published, it fails, and is due again {DELAY:.0f} s "
        f"after that; the next one follows then. All are watched at once, ours in {_COPIES} copies, for "
        f"{sizes.seconds:g} s at most, with their defaults and no log; a late one sees fewer messages. At the "
        f"same time a row is committed every {_COMMIT_EVERY:g} s. That shows how long the disk takes to answer, "
        f"for which every claim waits.{absent}"
    )
    return [Result("peers: a timer and a retry on an idle queue", lines, note, targets)]


def _line(values: list[float]) -> dict[str, Spread | float | None]:
    return {"late, ms": Spread.of(values), "p99, ms": percentile(values, 99), "messages": len(values)}


@asynccontextmanager
async def _commits(bench: Bench) -> AsyncIterator[list[float]]:
    """Commit a row now and then, and record how many milliseconds that took."""
    took: list[float] = []
    over = asyncio.Event()
    await bench.control.execute("CREATE TABLE IF NOT EXISTS peers_commits (n bigint)")

    async def commit() -> None:
        while not took or not over.is_set():
            began = time.monotonic()
            await bench.control.execute("INSERT INTO peers_commits VALUES (1)")
            took.append(1000 * (time.monotonic() - began))
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _COMMIT_EVERY)

    committing = asyncio.create_task(commit())
    try:
        yield took
    finally:
        over.set()
        await committing


async def _watch(stage: Stage, entry: Entry, sizes: Sizes, offset: float) -> list[Lateness]:
    """Send one message after the other, and tell how late each was."""
    worker, publisher = await stage.child(entry, 0), await stage.child(entry, 1)
    await worker.ask("create")
    await worker.ask("start", expected=-1, failures=1, retry_after=DELAY, watched=True, options=dict(entry.options))
    await publisher.ask("open", clients=1)
    await asyncio.sleep(_SETTLE + offset)
    late: list[Lateness] = []
    loop = asyncio.get_running_loop()
    at, took, end = loop.time(), 0.0, loop.time() + sizes.seconds
    # Who is so late that the next one would not come in time has seen its last.
    while not late or (at + took < end and len(late) < sizes.messages):
        began = (await publisher.ask("commit", number=len(late), delay=DELAY))["began"]
        failed, came = await _times(worker, len(late), 2)
        late.append(Lateness(1000 * (failed - began - DELAY), 1000 * (came - failed - DELAY)))
        at, took = loop.time(), loop.time() - at
    await publisher.ask("close")
    await worker.ask("stop")
    return late


async def _times(worker: Child, number: int, count: int) -> list[float]:
    """Wait until a message has come so often, and tell when."""
    async with asyncio.timeout(60):
        while True:
            times: list[float] = (await worker.ask("times"))["times"].get(str(number), [])
            if len(times) >= count:
                return times[:count]
            await asyncio.sleep(_LOOK_EVERY)


SCENARIO: Final = Scenario("peers-timers", "how late a timer and a retry come on an idle queue, ours and peers'", run)
