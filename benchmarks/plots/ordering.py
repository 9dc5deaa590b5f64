"""How the strategies for rows with a key compare."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.plots.style import Style, drawing, lines_of, plot

# The same colour for the same strategy, in both drawings, and a marker for readers who cannot see the colours.
_STYLES: Final[dict[str, Style]] = {
    "HeadLease": {"color": "#0b6e4f", "marker": "o"},
    "AdvisoryLocks": {"color": "#c2571a", "marker": "s"},
    "HashShards": {"color": "#3f51b5", "marker": "^"},
    "no keys": {"color": "#757575", "marker": "x", "linestyle": "--"},
}


def ordering(results: Mapping[str, Any], file: Path) -> None:
    """Draw both comparisons side by side, of the first driver that was measured."""
    claims, sharing = results["keys"][0], results["strategies"][0]
    with drawing(file, columns=2) as (left, right):
        plot(left, lines_of(sharing, "msg/s"), _STYLES.get, "claimers", "messages a second, claimed and settled")
        plot(right, lines_of(claims, "claim, ms"), _STYLES.get, "rows in the table", "milliseconds for 100 keys")
