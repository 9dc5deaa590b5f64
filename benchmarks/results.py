"""What a scenario hands back, and how it reads as Markdown and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.measure import Spread, Usage, spread

Value = Spread | float | None
Lines = dict[str, dict[str, Value]]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a ratio is held against."""

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    # Which of P1 to P12 it is of, and in which respect: `aims.py` has them all.
    aim: str | None = None
    respect: str = ""

    @property
    def holds(self) -> bool:
        """Whether the value keeps within its bounds."""
        below = self.at_most is None or self.value <= self.at_most
        return below and (self.at_least is None or self.value >= self.at_least)

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "MISSED"
        of = f"{self.aim}, " if self.aim else ""
        return f"{of}{self.what}: {number(self.value)}, target {bounds(self.at_least, self.at_most)}: {verdict}"


@dataclass(frozen=True, slots=True)
class Result:
    """One table: a line for each case, a column for each key of the lines' values."""

    title: str
    lines: Mapping[str, Mapping[str, Value]]
    note: str
    targets: Sequence[Target] = ()
    # Single measurements, where a plot shows more than their middle.
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def markdown(self) -> str:
        """Write the table, what is to be known about it, and how it stands to its targets."""
        parts = [f"### {self.title}", self.note, self.table()]
        parts += ["\n".join(f"- {target}" for target in self.targets)] if self.targets else []
        return "\n\n".join(parts)

    def table(self) -> str:
        """Write the table alone."""
        columns = list(dict.fromkeys(column for values in self.lines.values() for column in values))
        table = [["", *columns], ["---", *["---:"] * len(columns)]]
        table += [[case, *(cell(values.get(column)) for column in columns)] for case, values in self.lines.items()]
        return "\n".join(f"| {' | '.join(line)} |" for line in table)

    def as_json(self) -> dict[str, Any]:
        """Turn everything into what JSON knows."""
        return {**asdict(self), "targets": [{**asdict(target), "holds": target.holds} for target in self.targets]}


def per_message(usages: Sequence[Usage], count: int) -> dict[str, Value]:
    """Make the columns of what `count` messages used up, each round."""
    return {
        "Python µs": Spread.of([usage.python_us / count for usage in usages]),
        "Postgres µs": spread([None if usage.postgres_us is None else usage.postgres_us / count for usage in usages]),
        "WAL B": Spread.of([usage.wal_bytes / count for usage in usages]),
        "statements": Spread.of([usage.statements / count for usage in usages]),
    }


def cell(value: Value) -> str:
    """Write one value: the median, with the range of the middle half behind it."""
    match value:
        case None:
            return ""
        case Spread(median, low, high):
            shown = number(median), number(low), number(high)
            return shown[0] if len(set(shown)) == 1 else "{} ({}…{})".format(*shown)
        case _:
            return number(value)


def bounds(at_least: float | None, at_most: float | None) -> str:
    """Write between what a value has to be."""
    given = [f"≥ {at_least:,g}"] if at_least is not None else []
    given += [f"≤ {at_most:,g}"] if at_most is not None else []
    return " and ".join(given)


def number(value: float) -> str:
    """Write a number with the digits that mean something."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"
