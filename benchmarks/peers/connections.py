"""How many connections a subscriber needs, by how many messages it handles side by side."""

import asyncio
from typing import Final

from benchmarks.aims import CONNECTIONS as AIM
from benchmarks.peers.contestants import ORIGINAL, OURS, PGQUEUER_BEST, PROCRASTINATE, Entry
from benchmarks.peers.stage import Stage
from benchmarks.peers.turns import CONNECTIONS
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale, Scenario

WORKERS: Final[dict[Scale, tuple[int, ...]]] = {"tiny": (1, 16), "quick": (1, 16), "full": (1, 4, 16)}
# Enough for all that works side by side to have something to do.
_MESSAGES: Final = 500
# For how many seconds each is watched: some connect only when they do what they do now and then.
SECONDS: Final[dict[Scale, float]] = {"tiny": 0.5, "quick": 1.0, "full": 20.0}
_LOOK_EVERY: Final = 0.1


def entries(scale: Scale) -> list[Entry]:
    """Set up everybody for as many messages side by side."""
    listed = []
    for workers in WORKERS[scale]:
        side_by_side = f"{workers} side by side"
        listed += [
            Entry(OURS, side_by_side, {"subscriber": {"max_workers": workers}}),
            Entry(ORIGINAL, side_by_side, {"subscriber": {"max_workers": workers}}),
            Entry(PROCRASTINATE, side_by_side, {"concurrency": workers, "pool": workers}),
        ]
    return [*listed, Entry(PGQUEUER_BEST.contestant, "as many as are claimed")]


async def run(bench: Bench) -> list[Result]:
    """Count the connections of each while it works."""
    lines: Lines = {}
    targets = []
    async with Stage(bench) as stage:
        there, absent = await stage.present(*entries(bench.scale))
        for entry in there:
            bench.say(f"peers, connections of {entry}")
            most = await _most(stage, entry, SECONDS[bench.scale])
            lines[str(entry)] = {"connections": most}
            if entry.contestant is OURS:
                targets.append(AIM.target(f"connections of {entry}", most))
    note = (
        f"The most that one broker with one subscriber had open in {SECONDS[bench.scale]:g} s, with some work at "
        "first. Procrastinate has as many as its pool is given, and one that listens; with fewer its jobs wait for "
        f"each other.{absent}"
    )
    return [Result("peers: connections of a subscriber", lines, note, targets)]


async def _most(stage: Stage, entry: Entry, seconds: float) -> int:
    """Tell how many connections there were at most."""
    control, child = stage.bench.control, await stage.child(entry)
    await child.ask("create")
    await child.ask("fill", count=_MESSAGES)
    before = await control.fetchval(CONNECTIONS)
    await child.ask("start", expected=_MESSAGES, options=dict(entry.options))
    most = 0
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        most = max(most, await control.fetchval(CONNECTIONS) - before)
        await asyncio.sleep(_LOOK_EVERY)
    await child.ask("wait")
    await child.ask("stop")
    return most


SCENARIO: Final = Scenario("peers-connections", "connections of a subscriber, for different numbers of workers", run)
