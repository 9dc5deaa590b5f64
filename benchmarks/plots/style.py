"""How all plots look, and what they have in common."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

LOOK: Final = {
    # Ids that come out the same each time, text that stays text.
    "svg.hashsalt": "faststream-outbox",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e0e0e0",
}
# So many fit beside each other below the drawing.
_MOST_LABELS: Final = 4
# A line's name, and where it stands on the horizontal axis: "HeadLease, 4 claimers".
_CASE: Final = re.compile(r"(?P<name>.+), (?P<at>[\d,]+) (?:claimers?|process(?:es)?|rows)")

Style = Mapping[str, Any]
Lines = dict[str, dict[int, float]]


def lines_of(table: Mapping[str, Any], column: str) -> Lines:
    """Read one column of a table: the medians of each name, by what is on the horizontal axis."""
    lines: Lines = {}
    for case, values in table["lines"].items():
        if (found := _CASE.fullmatch(case)) is not None:
            lines.setdefault(found["name"], {})[int(found["at"].replace(",", ""))] = values[column]["median"]
    return lines


@contextmanager
def drawing(file: Path, *, columns: int = 1) -> Iterator[Any]:
    """Have axes to draw in, beside each other if there are several, and write them as one file with one legend."""
    import matplotlib as mpl  # noqa: PLC0415 - has an environment of its own, which the tests can do without

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - same

    with mpl.rc_context(LOOK):
        figure, axes = plt.subplots(1, columns, figsize=(3 + 3 * columns, 3.6), layout="constrained")
        yield axes
        first = axes if columns == 1 else axes[0]
        handles, labels = first.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), _MOST_LABELS), frameon=False)
        figure.savefig(file, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def plot(axes: Any, lines: Lines, style: Callable[[str], Style | None], across: str, up: str) -> None:
    """Draw those lines that have a style, with a mark for each point, over a logarithmic axis."""
    drawn = {name: points for name, points in lines.items() if style(name) is not None}
    for name, points in drawn.items():
        axes.plot(list(points), list(points.values()), label=name, **style(name) or {})
    ticks = sorted({at for points in drawn.values() for at in points})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{at:,}" for at in ticks])
    axes.minorticks_off()
    describe(axes, across, up)


def describe(axes: Any, across: str, up: str) -> None:
    """Say what is on the axes; the vertical one begins at nothing."""
    axes.set_xlabel(across)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(up, loc="left", fontsize=10)
