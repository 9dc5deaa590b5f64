"""Draw the plots and renew the tables for which a file of results has the numbers: `make plot ARGS="results.json"`.

The figure of the README is drawn from the tables that benchmarks/README.md records, so that both have the same numbers:
`make plot` alone draws it, and writes its numbers into the README as the text for those who do not see it.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.plots.bars import bars, described
from benchmarks.plots.ordering import ordering
from benchmarks.plots.peers import backlog, churn, latency, processes
from benchmarks.plots.recorded import RECORD, recorded_tables
from benchmarks.plots.tables import renew

# What is drawn under which name, and the scenarios that it is drawn from.
PLOTS: Final[dict[str, tuple[Callable[[Mapping[str, Any], Path], None], tuple[str, ...]]]] = {
    "ordering": (ordering, ("keys", "strategies")),
    "backlog": (backlog, ("peers-backlog",)),
    "processes": (processes, ("peers-drain",)),
    "churn": (churn, ("peers-churn",)),
    "latency": (latency, ("peers-latency",)),
}
# What is drawn from the recorded tables.
FIGURE: Final = "beside-peers"
IMAGES: Final = Path("docs/images")
README: Final = Path("README.md")
# The page with tables and plots, and the scenario that the tables come from.
PAGE: Final = Path("docs/scale.md")
TABLES: Final = "scale"


def with_words(page: str, words: str) -> str:
    """Return the README with these words for readers who do not see its figure."""
    return re.sub(rf'(<img src="{IMAGES}/{FIGURE}\.svg"[^>]* alt=")[^"]*', lambda found: found[1] + words, page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("results", type=Path, nargs="*", help="what `--json FILE` wrote; a later one wins")
    parser.add_argument("--to", type=Path, default=IMAGES, metavar="DIR", help=f"where to put them ({IMAGES})")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    for file in options.results:
        results |= json.loads(file.read_text())["results"]
    tables = recorded_tables(RECORD.read_text())
    (options.to / f"{FIGURE}.svg").write_text(bars(tables))
    if options.to == IMAGES:
        README.write_text(with_words(README.read_text(), described(tables)))
    print(f"{FIGURE} drawn in {options.to}")
    if not options.results:
        return 0
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
