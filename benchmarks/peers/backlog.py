"""How fast a part of a backlog is drained, by how large the backlog is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.measure import Spread
from benchmarks.peers.contestants import ORIGINAL_BEST, OURS_DEFAULTS, PGQUEUER_BEST, Entry
from benchmarks.peers.stage import Stage
from benchmarks.peers.turns import Load, Turn, columns, work_off
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale, Scenario

ENTRIES: Final = (OURS_DEFAULTS, ORIGINAL_BEST, PGQUEUER_BEST)
# A program answers when all is there: in pieces, so that it need not be waited for too long.
_FILLED_AT_ONCE: Final = 100_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """The backlogs, how much of each is drained at most, and how often."""

    backlogs: tuple[int, ...]
    drained: int
    rounds: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes((100, 500), drained=300, rounds=1),
    "quick": Sizes((1_000, 10_000, 100_000), drained=10_000, rounds=3),
    "full": Sizes((1_000, 10_000, 100_000, 1_000_000), drained=10_000, rounds=3),
}


async def run(bench: Bench) -> list[Result]:
    """Let each drain a part of each backlog, in turn; what was drained is filled up again."""
    sizes = SIZES[bench.scale]
    lines: Lines = {}
    async with Stage(bench) as stage:
        entries, absent = await stage.present(*ENTRIES)
        for backlog in sizes.backlogs:
            for entry in entries:
                await (await stage.child(entry)).ask("create")
            load = Load(backlog, min(backlog, sizes.drained))
            cases = {str(entry): partial(_turn, stage, entry, load) for entry in entries}
            measured = await bench.interleave(f"peers, backlog of {backlog:,}", cases, rounds=sizes.rounds)
            lines |= {f"{case}, {backlog:,} rows": _line(turns) for case, turns in measured.items()}
    note = (
        f"Of each backlog {sizes.drained:,} messages are drained by one process, or all if there are fewer, and filled "
        f"up again before the next turn.{absent}"
    )
    return [Result("peers: draining by backlog", lines, note)]


async def _turn(stage: Stage, entry: Entry, load: Load) -> Turn:
    child, table = await stage.child(entry), entry.contestant.table
    missing = load.backlog - await stage.bench.control.fetchval(f"SELECT count(*) FROM {table}")
    for start in range(0, missing, _FILLED_AT_ONCE):
        await child.ask("fill", count=min(_FILLED_AT_ONCE, missing - start))
    return await work_off(stage, entry, load)


def _line(turns: Sequence[Turn]) -> dict[str, Spread | float | None]:
    return {"msg/s": Spread.of([turn.rate for turn in turns]), **columns(turns)}


SCENARIO: Final = Scenario("peers-backlog", "ours and its peers drain a part of small and large backlogs", run)
