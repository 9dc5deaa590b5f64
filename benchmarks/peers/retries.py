"""Every message fails twice and then succeeds, with hardly a delay between."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.aims import RETRIES
from benchmarks.measure import Spread, ratios
from benchmarks.peers.contestants import (
    ORIGINAL,
    ORIGINAL_BEST,
    OURS_DEFAULTS,
    PGQUEUER_BEST,
    PROCRASTINATE,
    PROCRASTINATE_BEST,
    Entry,
)
from benchmarks.peers.stage import Stage
from benchmarks.peers.turns import Load, columns, drain
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale, Scenario

FAILURES: Final = 2
RETRY_AFTER: Final = 0.01
# Who polls for what is due again takes part with short sleeps.
_IMPATIENT: Final = {"min_fetch_interval": 0.01, "max_fetch_interval": 0.05}
PATIENT_ORIGINAL: Final = Entry(ORIGINAL, "best", ORIGINAL_BEST.options)
QUICK_ORIGINAL: Final = Entry(
    ORIGINAL, "best, short sleeps", {"subscriber": {**ORIGINAL_BEST.options["subscriber"], **_IMPATIENT}}
)
MORE_WORKERS: Final = Entry(
    ORIGINAL,
    "best, short sleeps, 8 workers",
    {"subscriber": {**QUICK_ORIGINAL.options["subscriber"], "max_workers": 8}},
)
QUICK_PROCRASTINATE: Final = Entry(
    PROCRASTINATE, "best, short sleeps", {**PROCRASTINATE_BEST.options, "fetch_job_polling_interval": 0.05}
)
NOTHING_FAILS: Final = Entry(OURS_DEFAULTS.contestant, "nothing fails")
ENTRIES: Final = (
    *(OURS_DEFAULTS, QUICK_ORIGINAL, MORE_WORKERS, PATIENT_ORIGINAL),
    *(PGQUEUER_BEST, QUICK_PROCRASTINATE, NOTHING_FAILS),
)

# What P3 needs: with short sleeps the original is as quick with more workers, and in some runs quicker.
QUICK: Final = tuple(e for e in ENTRIES if e not in (QUICK_ORIGINAL, PATIENT_ORIGINAL, NOTHING_FAILS))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many messages; how many for the peers, who are slow at this, and for the slowest; and how often.

    The first and the last wait for their delays. Twice as many would not change the rate of ours, or of the original.
    """

    messages: int
    slow: int
    slowest: int
    rounds: int
    entries: tuple[Entry, ...] = ENTRIES


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(messages=100, slow=50, slowest=20, rounds=1),
    "quick": Sizes(messages=2_000, slow=800, slowest=150, rounds=3, entries=QUICK),
    "full": Sizes(messages=4_000, slow=2_000, slowest=400, rounds=5),
}


async def run(bench: Bench) -> list[Result]:
    """Let each do with failures, in turn."""
    sizes = SIZES[bench.scale]
    async with Stage(bench) as stage:
        entries, absent = await stage.present(*sizes.entries)
        cases = {str(entry): partial(drain, stage, entry, _load(entry, sizes)) for entry in entries}
        measured = await bench.interleave("peers, retries", cases, rounds=sizes.rounds)
    rates = {case: [turn.rate for turn in turns] for case, turns in measured.items()}
    ours = rates[str(OURS_DEFAULTS)]
    lines: Lines = {}
    for case, turns in measured.items():
        lines[case] = {
            "msg/s": Spread.of(rates[case]),
            "ours to it": ratios(ours, rates[case]),
            **columns(turns),
        }
    targets = []
    for peer in map(str, (QUICK_ORIGINAL, MORE_WORKERS, PATIENT_ORIGINAL)):
        ratio = ratios(ours, rates[peer]) if peer in rates else None
        if ratio is not None:
            targets.append(RETRIES.target(f"ours to {peer}", ratio.median))
    note = (
        f"{sizes.messages:,} messages ({sizes.slow:,} for the peers, {sizes.slowest:,} for Procrastinate), each of "
        f"which fails {FAILURES} times and succeeds then, "
        f"{1000 * RETRY_AFTER:.0f} ms later each time (Procrastinate: at once); until the last is settled. "
        f"Costs are those of a message with all its attempts.{absent}"
    )
    return [Result(f"peers: {sizes.messages:,} messages that fail twice", lines, note, targets)]


def _load(entry: Entry, sizes: Sizes) -> Load:
    slow = sizes.slowest if entry == QUICK_PROCRASTINATE else sizes.slow
    messages = sizes.messages if entry.contestant.ours else slow
    if entry == NOTHING_FAILS:
        return Load(messages, messages)
    return Load(messages, messages, failures=FAILURES, retry_after=RETRY_AFTER)


SCENARIO: Final = Scenario("peers-retries", "every message fails twice and then succeeds, ours and peers'", run)
