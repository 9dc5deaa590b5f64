"""The page that says what the soaks did; every number on it comes from their results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.soak.round import Result

_INTRODUCTION: Final = """\
# Soak runs

Processes publish, claim, handle and settle while they are killed and paused, while their connections are cut, and while
Postgres crashes. In the runs of relays the broker that rows are sent to is killed, stopped and paused too. A checker
then reads what each process logged, with one clock for all. It looks for rows that were lost, repeated without a
reason, handled out of order or stuck, that two processes held at once, and that a process changed after it had lost its
lease.
"""
_COLUMNS: Final = {
    "messages": ("rows inserted",),
    "processes killed": ("workers killed", "producers killed"),
    "paused": ("workers paused", "producers paused"),
    "connections cut": ("connections terminated",),
    "Postgres crashes": ("server crashes",),
    "broker outages": ("target killed", "target stopped", "target paused"),
    "leases lost": ("leases found lost",),
    "suspects": ("suspects claimed",),
}


@dataclass(frozen=True)
class Run:
    """One soak: what it is about, the arguments that repeat it, how long it took, and its rounds."""

    what: str
    arguments: Sequence[str]
    seconds: float = 0.0
    results: Sequence[Result] = field(default_factory=list)
    # Why it was not run, if it was not.
    lacks: str = ""

    @property
    def violations(self) -> int:
        """How often a rule was broken."""
        return sum(len(result.violations) for result in self.results)

    def cells(self) -> list[str]:
        """Return the line of the table."""
        if self.lacks:
            return [self.what, f"not run: {self.lacks}", *([""] * (len(_COLUMNS) + 2))]
        counts: Counter[str] = Counter()
        for result in self.results:
            counts += result.counts + result.faults
        seeds = [result.seed for result in self.results]
        numbers = [sum(counts[name] for name in names) for names in _COLUMNS.values()]
        return [
            self.what,
            f"{self.seconds / 60:.1f}",
            f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0]),
            *(f"{number:,}" for number in numbers),
            f"**{self.violations}**",
        ]


def render(runs: Sequence[Run], *, command: str, state: str) -> str:
    """Return the page; `state` says which version of the code was run."""
    ran = [run for run in runs if not run.lacks]
    hours = sum(run.seconds for run in ran) / 3600
    broken = sum(run.violations for run in ran)
    total = f"{hours:.1f} hours, {sum(len(run.results) for run in ran)} rounds, {broken} violations"
    header = ["what", "minutes", "seeds", *_COLUMNS, "violations"]
    lines = [header, ["---"] * len(header), *(run.cells() for run in runs)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"""{_INTRODUCTION}
`{command}` wrote this page, on {state}: {total}.

{table}

*Minutes*: with the start of servers and processes, and with the time until the table was empty. *Leases lost*: a
process found that another had taken its row, and changed nothing. *Suspects*: rows that were claimed alone, because the
process that had them may have died of them. *Beside version*: about half of the processes are of that older version.

## Repeat it

A round lasts 30 seconds and has a seed of its own, one higher than the round before. The seed decides what is tried;
when it happens is up to the machine. All of it, and one line of the table (`--order`, `--beside` and `--relay` choose):

```sh
{command}
{_recipe(ran[-1]) if ran else ""}
```
"""


def _recipe(run: Run) -> str:
    return f'make soak ARGS="{" ".join(run.arguments)}"'
