"""What a scenario hands back, and how it reads as Markdown and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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

    @property
    def holds(self) -> bool:
        """Whether the value keeps within its bounds."""
        below = self.at_most is None or self.value <= self.at_most
        return below and (self.at_least is None or self.value >= self.at_least)

    def __str__(self) -> str:
        bounds = [f"≤ {self.at_most:g}"] if self.at_most is not None else []
        bounds += [f"≥ {self.at_least:g}"] if self.at_least is not None else []
        verdict = "holds" if self.holds else "MISSED"
        return f"{self.what}: {number(self.value)}, target {' and '.join(bounds)}: {verdict}"


@dataclass(frozen=True, slots=True)
class Result:
    """One table: a line for each case, a column for each key of the lines' values."""

    title: str
    lines: Mapping[str, Mapping[str, Value]]
    note: str
    targets: Sequence[Target] = ()

    def markdown(self) -> str:
        """Write the table, what is to be known about it, and how it stands to its targets."""
        columns = list(dict.fromkeys(column for values in self.lines.values() for column in values))
        table = [["", *columns], ["---", *["---:"] * len(columns)]]
        table += [[case, *(cell(values.get(column)) for column in columns)] for case, values in self.lines.items()]
        parts = [f"### {self.title}", self.note, "\n".join(f"| {' | '.join(line)} |" for line in table)]
        parts += ["\n".join(f"- {target}" for target in self.targets)] if self.targets else []
        return "\n\n".join(parts)

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


def number(value: float) -> str:
    """Write a number with the digits that mean something."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"
