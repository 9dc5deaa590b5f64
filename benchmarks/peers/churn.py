"""Publishing and handling go on while another connection holds a snapshot, ours and its peers' one after the other."""

import asyncio
import time
from itertools import pairwise
from typing import Final

from benchmarks.peers.contestants import ORIGINAL_BEST, OURS_DEFAULTS, PGQUEUER_BEST, Entry
from benchmarks.peers.stage import Stage
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale, Scenario
from benchmarks.snapshot import BATCH, held_snapshot

ENTRIES: Final = (OURS_DEFAULTS, ORIGINAL_BEST, PGQUEUER_BEST)
SECONDS: Final[dict[Scale, float]] = {"tiny": 1.0, "quick": 20.0, "full": 60.0}
# So many messages wait at most: enough that the worker is never without work, few enough that it is churn.
_WAITING: Final = 4 * BATCH
_LOOK_EVERY: Final = 0.005
# The tables have so many stretches, the samples one for each second.
_STRETCHES: Final = 6


async def run(bench: Bench) -> list[Result]:
    """Let each churn under a snapshot of its own."""
    seconds = bench.seconds or SECONDS[bench.scale]
    stretch = seconds / _STRETCHES
    lines: Lines = {}
    samples = {}
    async with Stage(bench) as stage:
        entries, absent = await stage.present(*ENTRIES)
        for entry in entries:
            seen = await _churn(stage, entry, seconds)
            rates = [_rate(seen, number * stretch, (number + 1) * stretch) for number in range(_STRETCHES)]
            edges = [f"{number * stretch:.0f} to {(number + 1) * stretch:.0f} s" for number in range(_STRETCHES)]
            lines[str(entry)] = {
                **dict(zip(edges, rates, strict=True)),
                "last ÷ first": rates[-1] / rates[0] if rates[0] else None,
            }
            samples[str(entry)] = [round(_rate(seen, second, second + 1)) for second in range(int(seconds))]
    note = (
        f"Messages a second through handlers that do nothing, while another process publishes {BATCH} at a time so "
        f"that no more than {_WAITING:,} wait, and a third connection holds a snapshot: nothing dead goes.{absent}"
    )
    return [Result("peers: churn with a held snapshot", lines, note, samples=samples)]


async def _churn(stage: Stage, entry: Entry, seconds: float) -> list[tuple[float, int]]:
    """Publish and handle for this long; return the number of handled messages over time."""
    worker, publisher = await stage.child(entry, 0), await stage.child(entry, 1)
    await worker.ask("create")
    await publisher.ask("open", clients=1)
    await worker.ask("start", expected=-1, options=dict(entry.options))
    published, began = 0, time.monotonic()
    seen: list[tuple[float, int]] = []
    async with held_snapshot(stage.bench):
        while not seen or seen[-1][0] < seconds:
            handled = (await worker.ask("look"))["handled"]
            seen.append((time.monotonic() - began, handled))
            stage.bench.say(f"peers, churn of {entry}, {seen[-1][0]:.0f} of {seconds:g} s")
            if published - handled <= _WAITING - BATCH:
                await publisher.ask("publish", count=BATCH, batch=BATCH)
                published += BATCH
            else:
                await asyncio.sleep(_LOOK_EVERY)
    await worker.ask("stop")
    await publisher.ask("close")
    return seen


def _rate(seen: list[tuple[float, int]], begin: float, end: float) -> float:
    """Tell how many messages a second were handled in a stretch of time."""
    return (_handled(seen, end) - _handled(seen, begin)) / (end - begin)


def _handled(seen: list[tuple[float, int]], at: float) -> float:
    """Tell how many had been handled at a moment, as if they came evenly between two looks."""
    for (before, some), (after, more) in pairwise([(0.0, 0), *seen]):
        if at <= after:
            return some + (more - some) * (at - before) / (after - before)
    return seen[-1][1]


SCENARIO: Final = Scenario("peers-churn", "ours and its peers while another transaction holds a snapshot", run)
