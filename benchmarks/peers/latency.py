"""How soon a handler on an idle queue gets a message that another process has published."""

import asyncio
from dataclasses import dataclass
from typing import Final

from benchmarks.aims import LATENCY_P50, LATENCY_P99, LATENCY_PEERS
from benchmarks.measure import Spread, interleave, ratios
from benchmarks.peers.child import Child
from benchmarks.peers.contestants import (
    BARE_LOOP,
    ORIGINAL_BEST,
    OURS_DEFAULTS,
    PGQUEUER_BEST,
    PROCRASTINATE_BEST,
    Entry,
    unset,
)
from benchmarks.peers.stage import Stage
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scale, Scenario

PEERS: Final = (unset(ORIGINAL_BEST), unset(PGQUEUER_BEST), unset(PROCRASTINATE_BEST))
ENTRIES: Final = (OURS_DEFAULTS, *PEERS, BARE_LOOP)
# What is compared with hearing without a framework.
AIMS: Final = {"p50": LATENCY_P50, "p99": LATENCY_P99}
PERCENTILES: Final = {"p50": 50, "p95": 95, "p99": 99}
# Before the first message, so that everybody listens; then between two, so that nobody else is still at work.
_SETTLE: Final = 0.5
_GAP: Final = 0.01


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of how many messages percentiles are taken, and how often."""

    messages: int
    rounds: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(messages=10, rounds=1),
    "quick": Sizes(messages=70, rounds=3),
    "full": Sizes(messages=300, rounds=5),
}


async def run(bench: Bench) -> list[Result]:
    """Let all wait for messages at once, and send one to each in turn: a busy moment then meets them all alike."""
    sizes = SIZES[bench.scale]
    async with Stage(bench) as stage:
        entries, absent = await stage.present(*ENTRIES, processes=2)
        count = sizes.messages * sizes.rounds
        waiting = {str(entry): await _start(stage, entry, count) for entry in entries}
        await asyncio.sleep(_SETTLE)

        def tell(number: int) -> None:
            if number % sizes.messages == 1:
                bench.say(f"peers, latency, round {number // sizes.messages + 1} of {sizes.rounds}")

        senders = {case: each.send for case, each in waiting.items()}
        await interleave(senders, rounds=count, warmup=0, rng=bench.rng("peers, latency"), tell=tell)
        latencies = {case: await each.latencies() for case, each in waiting.items()}
    measured = {
        case: [values[start : start + sizes.messages] for start in range(0, count, sizes.messages)]
        for case, values in latencies.items()
    }
    # Percentiles are taken of each round, so that they can be compared round by round.
    points = {
        case: {name: [percentile(values, rank) for values in rounds] for name, rank in PERCENTILES.items()}
        for case, rounds in measured.items()
    }
    bare = points[str(BARE_LOOP)]
    lines: Lines = {}
    for case, values in points.items():
        lines[case] = {
            **{f"{name}, ms": Spread.of(values[name]) for name in PERCENTILES},
            **{f"{name} to bare": ratios(values[name], bare[name]) for name in AIMS},
        }
    note = (
        f"{sizes.messages} messages to each in a round, published by one process and handled by another: from the "
        "moment before COMMIT is sent to the first line of the handler. All wait at once, and one of them gets a "
        f"message, then another, {1000 * _GAP:.0f} ms apart. All have their defaults, and no log.{absent}"
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


class Waiting:
    """A contestant with nothing to do, and the process that publishes to it."""

    def __init__(self, worker: Child, publisher: Child) -> None:
        self._worker = worker
        self._publisher = publisher
        self._committed: list[float] = []

    async def send(self) -> None:
        """Publish one message, and wait until it is over."""
        self._committed.append((await self._publisher.ask("commit", number=len(self._committed)))["at"])
        await asyncio.sleep(_GAP)

    async def latencies(self) -> list[float]:
        """Tell how many milliseconds each message took, and stop."""
        await self._worker.ask("wait")
        times = (await self._worker.ask("times"))["times"]
        await self._publisher.ask("close")
        await self._worker.ask("stop")
        return [1000 * (times[str(number)][0] - at) for number, at in enumerate(self._committed)]


async def _start(stage: Stage, entry: Entry, count: int) -> Waiting:
    worker, publisher = await stage.child(entry, 0), await stage.child(entry, 1)
    await worker.ask("create")
    await worker.ask("start", expected=count, watched=True, options=dict(entry.options))
    await publisher.ask("open", clients=1)
    return Waiting(worker, publisher)


def percentile(values: list[float], rank: float) -> float:
    """Return the value that so many of a hundred do not exceed; the nearest of those that were measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * rank / 100))]


SCENARIO: Final = Scenario("peers-latency", "how soon handlers on an idle queue get a message, ours and peers'", run)
