"""How soon a handler on an idle queue hears of a message that another process has published."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.aims import LATENCY_P50, LATENCY_P99, LATENCY_PEERS
from benchmarks.measure import Spread, ratios
from benchmarks.peers.child import Stage
from benchmarks.peers.contestants import (
    BARE_LOOP,
    ORIGINAL_BEST,
    OURS_DEFAULTS,
    PGQUEUER_BEST,
    PROCRASTINATE_BEST,
    Entry,
    unset,
)
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scale, Scenario

PEERS: Final = (unset(ORIGINAL_BEST), unset(PGQUEUER_BEST), unset(PROCRASTINATE_BEST))
ENTRIES: Final = (OURS_DEFAULTS, *PEERS, BARE_LOOP)
# What is compared with hearing without a framework.
AIMS: Final = {"p50": LATENCY_P50, "p99": LATENCY_P99}
PERCENTILES: Final = {"p50": 50, "p95": 95, "p99": 99}
# Before the first message, so that everybody listens; then between two, so that each comes to an idle worker.
_SETTLE: Final = 0.5
_GAP: Final = 0.01


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many messages in a turn, and how often."""

    messages: int
    rounds: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(messages=10, rounds=1),
    "quick": Sizes(messages=100, rounds=3),
    "full": Sizes(messages=500, rounds=11),
}


async def run(bench: Bench) -> list[Result]:
    """Let each wait for messages, in turn."""
    sizes = SIZES[bench.scale]
    async with Stage(bench) as stage:
        entries, absent = await stage.present(*ENTRIES)
        cases = {str(entry): partial(_latencies, stage, entry, sizes.messages) for entry in entries}
        measured = await bench.interleave("peers, latency", cases, rounds=sizes.rounds)
    # Percentiles are taken of each turn, so that they can be compared round by round.
    points = {
        case: {name: [percentile(turn, rank) for turn in turns] for name, rank in PERCENTILES.items()}
        for case, turns in measured.items()
    }
    bare = points[str(BARE_LOOP)]
    lines: Lines = {}
    for case, values in points.items():
        lines[case] = {
            **{f"{name}, ms": Spread.of(values[name]) for name in PERCENTILES},
            **{f"{name} to bare": ratios(values[name], bare[name]) for name in AIMS},
        }
    note = (
        f"{sizes.messages} messages a turn, {1000 * _GAP:.0f} ms apart, published by one process and handled by "
        "another: from the moment before COMMIT is sent to the first line of the handler. All have their defaults, "
        f"and no log.{absent}"
    )
    samples = {case: [round(each, 3) for turn in turns for each in turn] for case, turns in measured.items()}
    return [Result("peers: latency on an idle queue", lines, note, _targets(points), samples)]


def _targets(points: dict[str, dict[str, list[float]]]) -> list[Target]:
    ours = points[str(OURS_DEFAULTS)]
    targets = []
    for name, aim in AIMS.items():
        to_bare = ratios(ours[name], points[str(BARE_LOOP)][name])
        assert to_bare is not None
        targets.append(aim.target(f"ours to bare asyncpg, {name}", to_bare.median))
        for peer in map(str, PEERS):
            to_peer = ratios(ours[name], points[peer][name]) if peer in points else None
            if to_peer is not None:
                targets.append(LATENCY_PEERS.target(f"ours to {peer}, {name}", to_peer.median))
    return targets


async def _latencies(stage: Stage, entry: Entry, count: int) -> list[float]:
    """Publish to an idle worker, one by one; returns the milliseconds each took."""
    worker, publisher = await stage.child(entry, 0), await stage.child(entry, 1)
    await worker.ask("create")
    await worker.ask("start", expected=count, watched=True, options=dict(entry.options))
    await publisher.ask("open", clients=1, warm=False)
    await asyncio.sleep(_SETTLE)
    committed = []
    for number in range(count):
        committed.append((await publisher.ask("commit", number=number))["at"])
        await asyncio.sleep(_GAP)
    await worker.ask("wait")
    times = (await worker.ask("times"))["times"]
    await publisher.ask("close")
    await worker.ask("stop")
    return [1000 * (times[str(number)][0] - at) for number, at in enumerate(committed)]


def percentile(values: list[float], rank: float) -> float:
    """Return the value that so many of a hundred do not exceed; the nearest of those that were measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * rank / 100))]


SCENARIO: Final = Scenario(
    "peers-latency", "how soon handlers on an idle queue hear of a message, ours and peers'", run
)
