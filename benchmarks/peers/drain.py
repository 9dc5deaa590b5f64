"""A backlog through handlers that take one message and do nothing, by one process and by several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from benchmarks.aims import DRAIN_DEFAULTS, DRAIN_ORIGINAL, DRAIN_PGQUEUER, PROCESSES
from benchmarks.measure import Spread, ratios
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
from benchmarks.peers.stage import Stage
from benchmarks.peers.turns import Load, Turn, columns, consume, drain
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scale, Scenario

# Who is so slow that a part of the backlog has to do.
_SLOW: Final = (ORIGINAL_DEFAULTS, PROCRASTINATE_BEST)
_QUICK: Final = (OURS_DEFAULTS, ORIGINAL_BEST, PGQUEUER_BEST)
_ON_UVLOOP: Final = tuple(replace(entry, uvloop=True) for entry in _QUICK)
ENTRIES: Final = (*_QUICK, ORIGINAL_DEFAULTS, PGQUEUER_DEFAULTS, PROCRASTINATE_BEST, *_ON_UVLOOP, BARE_LOOP)
# What P1 needs, and the floor.
AIMED_AT: Final = tuple(entry for entry in ENTRIES if entry not in (PGQUEUER_DEFAULTS, *_ON_UVLOOP))
# How ours has to stand to each.
AIMS: Final = {PGQUEUER_BEST: DRAIN_PGQUEUER, ORIGINAL_BEST: DRAIN_ORIGINAL, ORIGINAL_DEFAULTS: DRAIN_DEFAULTS}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The backlog, what the slow ones get and how much of that is waited for, how often, who, by how many processes."""

    backlog: int
    slow_backlog: int
    slow: int
    rounds: int
    entries: tuple[Entry, ...] = ENTRIES
    # Who drains by more than one process, and by how many.
    shared_by: tuple[Entry, ...] = _QUICK
    processes: tuple[int, ...] = (1, 2)


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(1_000, slow_backlog=200, slow=100, rounds=1),
    "quick": Sizes(20_000, slow_backlog=2_000, slow=500, rounds=3, entries=AIMED_AT, shared_by=(OURS_DEFAULTS,)),
    "full": Sizes(20_000, slow_backlog=20_000, slow=2_000, rounds=5, processes=(1, 2, 4)),
}

Turns = dict[str, list[Turn]]


async def run(bench: Bench) -> list[Result]:
    """Let everybody drain by one process, and those who are quick by more, all in turns."""
    sizes = SIZES[bench.scale]
    async with Stage(bench) as stage:
        entries, absent = await stage.present(*sizes.entries)
        cases = {_by(entry, 1): partial(drain, stage, entry, _load(sizes, entry)) for entry in entries}
        for entry in [entry for entry in sizes.shared_by if entry in entries]:
            for processes in sizes.processes[1:]:
                cases[_by(entry, processes)] = partial(drain, stage, entry, _load(sizes, entry), processes)
        cases[_by(FASTSTREAM_ALONE, 1)] = partial(consume, stage, FASTSTREAM_ALONE, sizes.backlog // 2)
        measured: Turns = await bench.interleave("peers, draining", cases, rounds=sizes.rounds)
    return [_one(sizes, [*entries, FASTSTREAM_ALONE], measured, absent), _more(sizes, entries, measured, absent)]


def _load(sizes: Sizes, entry: Entry) -> Load:
    return Load(sizes.slow_backlog, sizes.slow) if entry in _SLOW else Load(sizes.backlog, sizes.backlog)


def _by(entry: Entry, processes: int) -> str:
    return f"{entry}, {processes} process{'es' * (processes > 1)}"


def _rates(measured: Turns, entry: Entry, processes: int = 1) -> list[float]:
    return [turn.rate for turn in measured[_by(entry, processes)]]


def _one(sizes: Sizes, entries: Sequence[Entry], measured: Turns, absent: str) -> Result:
    ours = _rates(measured, OURS_DEFAULTS)
    lines: Lines = {}
    for entry in entries:
        lines[str(entry)] = {
            "msg/s": Spread.of(_rates(measured, entry)),
            "ours to it": ratios(ours, _rates(measured, entry)),
            **columns(measured[_by(entry, 1)]),
        }
    note = (
        f"A backlog of {sizes.backlog:,} messages of 256 bytes, from the moment when all workers wait for their first "
        f"claim until the last row is settled; of the original's defaults and of Procrastinate {sizes.slow:,} are "
        "waited for. "
        f"Ours has its defaults and no log; `contestants.py` has the settings of the others. FastStream alone "
        f"lets half as many rows through that are there already, without a database.{absent}"
    )
    return Result(f"peers: draining {sizes.backlog:,}, one process", lines, note, _targets(entries, measured))


def _targets(entries: Sequence[Entry], measured: Turns) -> list[Target]:
    targets = []
    for peer, aim in AIMS.items():
        for uvloop in (False, True):
            theirs, ours = replace(peer, uvloop=uvloop), replace(OURS_DEFAULTS, uvloop=uvloop)
            if theirs in entries and ours in entries:
                ratio = ratios(_rates(measured, ours), _rates(measured, theirs))
                assert ratio is not None
                targets.append(aim.target(f"{ours} to {theirs}", ratio.median))
    return targets


def _more(sizes: Sizes, entries: Sequence[Entry], measured: Turns, absent: str) -> Result:
    lines: Lines = {}
    for entry in [entry for entry in sizes.shared_by if entry in entries]:
        for processes in sizes.processes:
            lines[_by(entry, processes)] = {
                "msg/s": Spread.of(_rates(measured, entry, processes)),
                "to one process": ratios(_rates(measured, entry, processes), _rates(measured, entry)),
                **columns(measured[_by(entry, processes)]),
            }
    gain = ratios(_rates(measured, OURS_DEFAULTS, 2), _rates(measured, OURS_DEFAULTS))
    assert gain is not None
    targets = [PROCESSES.target("ours, two processes to one", gain.median)]
    note = f"The same, by processes that begin at once. Costs are those of all together.{absent}"
    return Result(f"peers: draining {sizes.backlog:,}, several processes", lines, note, targets)


SCENARIO: Final = Scenario(
    "peers-drain", "ours, its peers and no framework drain a backlog, by one process and more", run
)
