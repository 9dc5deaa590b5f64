"""A backlog through handlers that take one message and do nothing, by one process and by two."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from benchmarks.measure import Spread, ratios
from benchmarks.peers.child import Stage
from benchmarks.peers.contestants import (
    BARE_LOOP,
    FASTSTREAM_ALONE,
    ORIGINAL_BEST,
    ORIGINAL_DEFAULTS,
    OURS_DEFAULTS,
    PGQUEUER_BEST,
    PGQUEUER_DEFAULTS,
    PROCRASTINATE_BEST,
    Entry,
)
from benchmarks.peers.turns import Load, Turn, columns, consume, drain
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scale, Scenario

# Who is so slow that a part of the backlog has to do.
_SLOW: Final = (ORIGINAL_DEFAULTS, PROCRASTINATE_BEST)
_QUICK: Final = (OURS_DEFAULTS, ORIGINAL_BEST, PGQUEUER_BEST)
_ON_UVLOOP: Final = tuple(replace(entry, uvloop=True) for entry in _QUICK)
ENTRIES: Final = (*_QUICK, ORIGINAL_DEFAULTS, PGQUEUER_DEFAULTS, PROCRASTINATE_BEST, *_ON_UVLOOP, BARE_LOOP)
# How ours has to stand to each, at least.
TARGETS: Final = {PGQUEUER_BEST: 1.2, ORIGINAL_BEST: 2.5, ORIGINAL_DEFAULTS: 15.0}
TWO_PROCESSES: Final = 1.5


@dataclass(frozen=True, slots=True)
class Sizes:
    """The backlog, how much of it the slow ones are waited for, and how often."""

    backlog: int
    slow: int
    rounds: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(backlog=1_000, slow=100, rounds=1),
    "quick": Sizes(backlog=20_000, slow=2_000, rounds=3),
    "full": Sizes(backlog=20_000, slow=4_000, rounds=11),
}


async def run(bench: Bench) -> list[Result]:
    """Drain by one process, then by one and by two."""
    async with Stage(bench) as stage:
        return [await _one(stage), await _two(stage)]


async def _one(stage: Stage) -> Result:
    sizes = SIZES[stage.bench.scale]
    entries, absent = await stage.present(*ENTRIES)
    cases = {
        str(entry): partial(drain, stage, entry, Load(sizes.backlog, sizes.slow if entry in _SLOW else sizes.backlog))
        for entry in entries
    }
    cases[str(FASTSTREAM_ALONE)] = partial(consume, stage, FASTSTREAM_ALONE, sizes.backlog)
    measured = await stage.bench.interleave("peers, draining", cases, rounds=sizes.rounds)
    rates = {case: [turn.rate for turn in turns] for case, turns in measured.items()}
    ours = rates[str(OURS_DEFAULTS)]
    lines: Lines = {}
    for case, turns in measured.items():
        lines[case] = {
            "msg/s": Spread.of(rates[case]),
            "ours to it": ratios(ours, rates[case]),
            **columns(turns),
        }
    note = (
        f"A backlog of {sizes.backlog:,} messages of 256 bytes, from the moment when all workers wait for their first "
        "claim until the last row is settled; of the slow ones so much is waited for as they do in some seconds. "
        f"Ours has its defaults and no log; what the others have is told in `contestants.py`. FastStream alone "
        f"lets rows through that are there already, without a database.{absent}"
    )
    return Result(f"peers: draining {sizes.backlog:,}, one process", lines, note, _targets(rates))


def _targets(rates: dict[str, list[float]]) -> list[Target]:
    targets = []
    for peer, bound in TARGETS.items():
        for uvloop in (False, True):
            theirs, ours = replace(peer, uvloop=uvloop), replace(OURS_DEFAULTS, uvloop=uvloop)
            if str(theirs) in rates and str(ours) in rates:
                ratio = ratios(rates[str(ours)], rates[str(theirs)])
                assert ratio is not None
                targets.append(Target(f"{ours} to {theirs}", ratio.median, at_least=bound))
    return targets


async def _two(stage: Stage) -> Result:
    sizes = SIZES[stage.bench.scale]
    entries, absent = await stage.present(*_QUICK)
    load = Load(sizes.backlog, sizes.backlog)
    numbered = [(entry, number) for entry in entries for number in (1, 2)]
    cases = {_by(entry, number): partial(drain, stage, entry, load, number) for entry, number in numbered}
    measured: dict[str, list[Turn]] = await stage.bench.interleave("peers, two processes", cases, rounds=sizes.rounds)
    rates = {case: [turn.rate for turn in turns] for case, turns in measured.items()}
    lines: Lines = {}
    for entry, number in numbered:
        case = _by(entry, number)
        lines[case] = {
            "msg/s": Spread.of(rates[case]),
            "to one process": ratios(rates[case], rates[_by(entry, 1)]),
            **columns(measured[case]),
        }
    gain = ratios(rates[_by(OURS_DEFAULTS, 2)], rates[_by(OURS_DEFAULTS, 1)])
    assert gain is not None
    targets = [Target("ours, two processes to one", gain.median, at_least=TWO_PROCESSES)]
    note = f"The same, by two processes that begin at once, beside one. Costs are those of both together.{absent}"
    return Result(f"peers: draining {sizes.backlog:,}, two processes", lines, note, targets)


def _by(entry: Entry, processes: int) -> str:
    return f"{entry}, {processes} process{'es' * (processes > 1)}"


SCENARIO: Final = Scenario(
    "peers-drain", "ours, its peers and no framework drain a backlog, by one process and two", run
)
