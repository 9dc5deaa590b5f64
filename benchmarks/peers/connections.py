"""How many connections a subscriber needs, by how many messages it handles side by side."""

from typing import Final

from benchmarks.peers.child import Stage
from benchmarks.peers.contestants import ORIGINAL, OURS, PGQUEUER_BEST, PROCRASTINATE, Entry
from benchmarks.peers.turns import Load, drain
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scenario

WORKERS: Final = (1, 4, 16)
# Two for a subscriber, and one for its broker.
TARGET: Final = 3
_MESSAGES: Final = 500


def entries() -> list[Entry]:
    """Set up everybody for as many messages side by side."""
    listed = []
    for workers in WORKERS:
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
        there, absent = await stage.present(*entries())
        for entry in there:
            bench.say(f"peers, connections of {entry}")
            turn = await drain(stage, entry, Load(_MESSAGES, _MESSAGES // 2))
            lines[str(entry)] = {"connections": turn.connections}
            if entry.contestant is OURS:
                targets.append(Target(f"connections of {entry}", turn.connections, at_most=TARGET))
    note = (
        "Of one broker with one subscriber, in the middle of a backlog. Procrastinate has as many as its pool is "
        f"given, and one that listens; with fewer its jobs wait for each other.{absent}"
    )
    return [Result("peers: connections of a subscriber", lines, note, targets)]


SCENARIO: Final = Scenario("peers-connections", "connections of a subscriber, whatever it does side by side", run)
