"""Draw how the strategies for rows with a key compare, from what `--json` wrote: `make plot ARGS="FROM TO"`."""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

# A line's name, and where it stands on the horizontal axis: "HeadLease, 4 claimers".
_CASE: Final = re.compile(r"(?P<name>.+?), (?P<at>[\d,]+) (?:claimers?|rows)")
# The same colour for the same strategy, in both drawings, and told apart without colours as well.
_STYLES: Final[dict[str, dict[str, Any]]] = {
    "HeadLease": {"color": "#0b6e4f", "marker": "o"},
    "AdvisoryLocks": {"color": "#c2571a", "marker": "s"},
    "HashShards": {"color": "#3f51b5", "marker": "^"},
    "no keys": {"color": "#757575", "marker": "x", "linestyle": "--"},
}
_LOOK: Final = {
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

Lines = dict[str, dict[int, float]]


def lines_of(table: Mapping[str, Any], column: str) -> Lines:
    """Read one column of a table: the medians of each strategy, by what is on the horizontal axis."""
    lines: Lines = {}
    for case, values in table["lines"].items():
        if (found := _CASE.fullmatch(case)) is not None and found["name"] in _STYLES:
            lines.setdefault(found["name"], {})[int(found["at"].replace(",", ""))] = values[column]["median"]
    return lines


def draw(content: Mapping[str, Any], file: Path) -> None:
    """Draw both comparisons side by side, of the first driver that was measured."""
    import matplotlib as mpl  # noqa: PLC0415 - has an environment of its own, which the tests can do without

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - same

    claims, sharing = content["results"]["keys"][0], content["results"]["strategies"][0]
    with mpl.rc_context(_LOOK):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        _plot(left, lines_of(sharing, "msg/s"), "claimers", "messages a second, claimed and settled")
        _plot(right, lines_of(claims, "claim, ms"), "rows in the table", "milliseconds for 100 keys")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(file, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _plot(axes: Any, lines: Lines, across: str, up: str) -> None:
    ticks = sorted({at for points in lines.values() for at in points})
    for name, points in lines.items():
        axes.plot(list(points), list(points.values()), label=name, **_STYLES[name])
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{at:,}" for at in ticks])
    axes.minorticks_off()
    axes.set_xlabel(across)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(up, loc="left", fontsize=10)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__)
    parser.add_argument("results", type=Path, help="what `--only keys,strategies --json FILE` wrote")
    parser.add_argument("file", type=Path, help="the SVG to write")
    options = parser.parse_args(arguments)
    draw(json.loads(options.results.read_text()), options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
