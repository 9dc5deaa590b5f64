"""`python -m benchmarks.sizing --rate 500`: what a load takes of Postgres, from the measured costs in docs/scale.md."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCALE: Final = Path(__file__).parents[1] / "docs" / "scale.md"
# What was measured had payloads of so many bytes; a larger one is written to the WAL once, when it is published.
MEASURED_PAYLOAD: Final = 256
# Beside those of subscribers: LISTEN, and one to publish or to answer a health check.
CONNECTIONS_PER_PROCESS: Final = 2


@dataclass(frozen=True)
class Load:
    """What a service does at its peak, and on what."""

    rate: float
    payload: int
    keys: bool
    outage_hours: float
    cores: int
    workers: int
    subscribers: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the sizes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing", description=__doc__)
    parser.add_argument("--rate", type=float, required=True, metavar="N", help="messages a second, at the peak")
    parser.add_argument("--payload", type=int, default=MEASURED_PAYLOAD, metavar="BYTES", help="of one message (256)")
    parser.add_argument("--keys", action="store_true", help="messages have keys")
    parser.add_argument("--outage-hours", type=float, default=4.0, metavar="N", help="for which rows may pile up (4)")
    parser.add_argument("--cores", type=int, default=2, metavar="N", help="of the server of Postgres (2)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that handle (2)")
    parser.add_argument("--subscribers", type=int, default=1, metavar="N", help="of each process (1)")
    load = Load(**vars(parser.parse_args(arguments)))
    sizes = sizes_for(load, SCALE.read_text())
    width = max(map(len, sizes))
    print("\n".join(f"{name:{width}}  {value}" for name, value in sizes.items()))
    return 0


def sizes_for(load: Load, page: str) -> dict[str, str]:
    """Return what a load needs, by the tables of the page about scale."""
    costs = table_of(page, "what a message costs")
    key = " with a key" if load.keys else ""
    published, handled = costs[f"a message{key} in it"], costs[f"a message{key} claimed and settled"]
    postgres_us = published["Postgres µs"] + handled["Postgres µs"]
    wal = published["WAL B"] + handled["WAL B"] + max(0, load.payload - MEASURED_PAYLOAD)
    row = _bytes_a_row(load, page)
    connections = 2 * load.subscribers + CONNECTIONS_PER_PROCESS
    backlog = load.rate * 3600 * load.outage_hours * row
    return {
        "processors of Postgres": f"{load.rate * postgres_us / 1e6 / load.cores:.0%} of {load.cores} cores",
        "WAL": f"{load.rate * wal / 1e6:.1f} MB a second, {load.rate * wal * 86_400 / 1e9:.0f} GB a day at this rate",
        "cores of workers": f"{load.rate * handled['Python µs'] / 1e6:.2f}, and what your handlers need",
        "disk for an outage": f"{backlog / 1e9:.1f} GB for {load.outage_hours:g} hours",
        "connections": f"{load.workers * connections}, and {connections} for each worker that a rollout adds meanwhile",
    }


def table_of(page: str, title: str) -> dict[str, dict[str, float]]:
    """Read a table between its marks: the medians, by line and column."""
    marked = page.partition(f"<!-- table: {title} -->")[2].partition("<!-- end of table -->")[0].strip()
    header, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in marked.splitlines())
    return {line[0]: dict(zip(header[1:], map(_median, line[1:]), strict=True)) for line in lines}


def _median(cell: str) -> float:
    """Read a number before its spread: `183 (165…193)`."""
    return float(cell.partition(" ")[0].replace(",", ""))


def _bytes_a_row(load: Load, page: str) -> float:
    """Return what a row takes on disk: of the smallest payload that was measured and is not smaller."""
    lines = table_of(page, "what a backlog takes on disk")
    sizes = {int(line.split()[2].replace(",", "")): line for line in lines if line.endswith(_which(load))}
    if load.payload > max(sizes):
        raise SystemExit(f"Payloads above {max(sizes):,} bytes were not measured: they belong into an object store.")
    return lines[sizes[min(size for size in sizes if size >= load.payload)]]["bytes a row"]


def _which(load: Load) -> str:
    return "with keys" if load.keys else "without keys"


if __name__ == "__main__":
    sys.exit(main())
