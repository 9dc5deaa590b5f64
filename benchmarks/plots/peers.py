"""Ours beside its peers: by backlog, by processes, over time under a held snapshot, and how soon they hear."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.plots.style import Style, describe, drawing, lines_of, plot

# Ours is the thick one. Dashes and marks tell the others apart without colours.
_STYLES: Final[dict[str, Style]] = {
    "ours": {"color": "#0b6e4f", "marker": "o", "linewidth": 2.8},
    "original": {"color": "#c2571a", "marker": "s", "linestyle": "--"},
    "pgqueuer": {"color": "#3f51b5", "marker": "^", "linestyle": "-."},
    "procrastinate": {"color": "#8e5aa8", "marker": "D", "linestyle": ":"},
    "bare asyncpg": {"color": "#757575", "marker": "x", "linestyle": (0, (1, 1))},
}


def style(name: str) -> Style | None:
    """Return how an entry is drawn, for any settings: "original, best" as the original."""
    return _STYLES.get(name.partition(",")[0])


def backlog(results: Mapping[str, Any], file: Path) -> None:
    """Draw the rate of a drain by what the table holds."""
    with drawing(file) as axes:
        lines = lines_of(results["peers-backlog"][0], "msg/s")
        plot(axes, lines, style, "messages that wait", "messages a second, one process")


def processes(results: Mapping[str, Any], file: Path) -> None:
    """Draw the rate of a drain by how many processes share it."""
    with drawing(file) as axes:
        lines = lines_of(results["peers-drain"][1], "msg/s")
        plot(axes, lines, style, "processes", "messages a second, all processes")


def churn(results: Mapping[str, Any], file: Path) -> None:
    """Draw each second under a held snapshot."""
    with drawing(file) as axes:
        for name, rates in results["peers-churn"][0]["samples"].items():
            axes.plot(range(1, len(rates) + 1), rates, label=name, **{**(style(name) or {}), "markevery": 10})
        describe(axes, "seconds with a held snapshot", "messages a second")


def latency(results: Mapping[str, Any], file: Path) -> None:
    """Draw which share of all messages was heard of by when."""
    with drawing(file) as axes:
        for name, times in results["peers-latency"][0]["samples"].items():
            shares = [100 * (number + 1) / len(times) for number in range(len(times))]
            marks = {"markevery": max(1, len(times) // 10)}
            axes.plot(sorted(times), shares, label=name, **{**(style(name) or {}), **marks})
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else "")
        describe(axes, "milliseconds from commit to handler, idle queue", "% of messages")
