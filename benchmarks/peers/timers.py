"""A timer, and a retry, due in a second on a queue where nothing else happens: how late they come."""

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.aims import RETRY, TIMER
from benchmarks.measure import Spread
from benchmarks.peers.child import Child, Stage
from benchmarks.peers.contestants import (
    ORIGINAL_BEST,
    OURS_DEFAULTS,
    PGQUEUER_BEST,
    PROCRASTINATE_BEST,
    Entry,
    unset,
)
from benchmarks.peers.latency import percentile
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale, Scenario

DELAY: Final = 1.0
AIMS: Final = {"timer": TIMER, "retry": RETRY}
ENTRIES: Final = (OURS_DEFAULTS, unset(ORIGINAL_BEST), unset(PGQUEUER_BEST), unset(PROCRASTINATE_BEST))
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
    "quick": Sizes(seconds=20.0, messages=50),
    "full": Sizes(seconds=240.0, messages=100),
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
        entries, absent = await stage.present(*ENTRIES)
        bench.say(f"peers, a timer and a retry every two seconds, for {sizes.seconds:.0f} s")
        watched = await asyncio.gather(*(_watch(stage, entry, sizes) for entry in entries))
    for what, aim in AIMS.items():
        for entry, late in zip(entries, watched, strict=True):
            values = [getattr(each, what) for each in late]
            lines[f"{what}, {entry}"] = {
                "late, ms": Spread.of(values),
                "p99, ms": percentile(values, 99),
                "messages": len(values),
            }
            if entry == OURS_DEFAULTS:
                targets.append(
                    aim.target(f"ours, a {what}'s delay beyond its second, ms at p99", percentile(values, 99))
                )
    note = (
        f"One message at a time: due {DELAY:.0f} s after it was published, it fails, and is due again {DELAY:.0f} s "
        "after that; the next one follows then. All are watched at once, for as long, with their defaults and no log; "
        f"who is late has seen fewer messages.{absent}"
    )
    return [Result("peers: a timer and a retry on an idle queue", lines, note, targets)]


async def _watch(stage: Stage, entry: Entry, sizes: Sizes) -> list[Lateness]:
    """Send one message after the other, and tell how late each was."""
    worker, publisher = await stage.child(entry, 0), await stage.child(entry, 1)
    await worker.ask("create")
    await worker.ask("start", expected=-1, failures=1, retry_after=DELAY, watched=True, options=dict(entry.options))
    await publisher.ask("open", clients=1, warm=False)
    await asyncio.sleep(_SETTLE)
    late: list[Lateness] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + sizes.seconds
    while not late or (loop.time() < end and len(late) < sizes.messages):
        began = (await publisher.ask("commit", number=len(late), delay=DELAY))["began"]
        failed, came = await _times(worker, len(late), 2)
        late.append(Lateness(1000 * (failed - began - DELAY), 1000 * (came - failed - DELAY)))
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
