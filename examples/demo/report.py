"""The end of the demo: a table of what happened, and the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from examples.demo.check import Evidence
from examples.demo.delivery import MAX_ATTEMPTS

_ORDERS_NAMED = 5


@dataclass(frozen=True)
class Pace:
    """How many orders were committed, and messages delivered, in a second of the run."""

    commits: float
    deliveries: float


def print_report(
    console: Console, evidence: Evidence, violations: Mapping[str, Sequence[int]], *, retried: int, pace: Pace
) -> None:
    """Print what happened and what must not have happened, then the verdict."""
    table = Table(box=SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right", min_width=8)
    table.add_column(justify="right", min_width=18)
    table.add_row("Orders committed", f"{len(evidence.committed):,}", f"{pace.commits:,.0f} per second")
    table.add_row("Orders rolled back", f"{len(evidence.cancelled):,}")
    table.add_row("Messages delivered", f"{evidence.packed.total():,}", f"{pace.deliveries:,.0f} per second")
    table.add_row("Deliveries failed and retried", f"{retried:,}")
    table.add_row(f"Dead letters, after {MAX_ATTEMPTS} attempts", f"{evidence.dead.total():,}", end_section=True)
    for name, orders in violations.items():
        style, mark = ("red", "must be 0") if orders else ("green", "ok")
        table.add_row(name, f"{len(orders):,}", f"[{style}]{mark}[/]")
    console.print(table)
    _print_verdict(console, {name: orders for name, orders in violations.items() if orders})


def _print_verdict(console: Console, found: Mapping[str, Sequence[int]]) -> None:
    verdict = Table.grid(padding=(0, 2))
    if found:
        verdict.add_row("[bold red]FAILED[/]", "The outbox did not keep its promise. Please report it, with the seed:")
    else:
        verdict.add_row(
            "[bold green]PASSED[/]",
            "Every committed order was delivered once or kept as a dead letter, and no order that was rolled back "
            "was delivered.",
        )
    for name, orders in found.items():
        more = ", ..." if len(orders) > _ORDERS_NAMED else ""
        verdict.add_row("", f"{name}: order {', '.join(map(str, orders[:_ORDERS_NAMED]))}{more}")
    console.print(verdict)
