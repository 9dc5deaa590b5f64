"""How much a round has to do and to meet, so that it proves something: it ends when it has, on any machine."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Least:
    """What a round needs before it may end."""

    seconds: float
    # By what was done, how often.
    work: Mapping[str, int]
    # By kinds of faults that count together, how many.
    faults: Mapping[tuple[str, ...], int]

    def lacks(self, work: Counter[str], faults: Counter[str]) -> dict[str, int]:
        """Return the counts that are too low."""
        done = {name: work[name] for name, least in self.work.items() if work[name] < least}
        met = {kinds: sum(faults[kind] for kind in kinds) for kinds in self.faults}
        return done | {" or ".join(kinds): count for kinds, count in met.items() if count < self.faults[kinds]}


KILLED = ("workers killed", "producers killed")
PAUSED = ("workers paused", "producers paused")
TERMINATED = ("connections terminated",)
