"""Draw the plots and renew the tables for which a file of results has the numbers: `make plot ARGS="results.json"`."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.plots.ordering import ordering
from benchmarks.plots.peers import backlog, churn, latency, processes
from benchmarks.plots.tables import renew

# What is drawn under which name, and the scenarios that it is drawn from.
PLOTS: Final[dict[str, tuple[Callable[[Mapping[str, Any], Path], None], tuple[str, ...]]]] = {
    "ordering": (ordering, ("keys", "strategies")),
    "backlog": (backlog, ("peers-backlog",)),
    "processes": (processes, ("peers-drain",)),
    "churn": (churn, ("peers-churn",)),
    "latency": (latency, ("peers-latency",)),
}
IMAGES: Final = Path("docs/images")
# The page with tables and plots, and the scenario that the tables come from.
PAGE: Final = Path("docs/scale.md")
TABLES: Final = "scale"


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="what `--json FILE` wrote; a later one wins")
    parser.add_argument("--to", type=Path, default=IMAGES, metavar="DIR", help=f"where to put them ({IMAGES})")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    for file in options.results:
        results |= json.loads(file.read_text())["results"]
    drawn = {}
    for name, (draw, needed) in PLOTS.items():
        if all(results.get(scenario) for scenario in needed):
            draw(results, options.to / f"{name}.svg")
            drawn[name] = f"{IMAGES.name}/{name}.svg"
        else:
            print(f"no {name}.svg: it needs {', '.join(needed)}", file=sys.stderr)
    if options.to == IMAGES:
        renew(PAGE, results.get(TABLES, ()), drawn)
    print(f"{', '.join(drawn) or 'nothing'} drawn in {options.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
