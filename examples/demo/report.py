"""The end of the demo: a table of what happened, and the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from examples.demo.figures import Figures
from examples.demo.handlers import MAX_ATTEMPTS
from examples.demo.watch import WorkerCount

_ORDERS_NAMED = 5


@dataclass(frozen=True)
class Course:
    """The values that only the process of the demo knows."""

    rolled_back: int
    commits_per_second: float
    deliveries_per_second: float
    workers: Sequence[WorkerCount]


def print_report(console: Console, course: Course, figures: Figures, violations: Mapping[str, Sequence[int]]) -> None:
    """Print what happened and what must not have happened, then the verdict."""
    table = Table(box=SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right", min_width=7)
    table.add_column(justify="right", min_width=25)
    _add_events(table, course, figures)
    _add_workers(table, course, figures)
    _add_repetitions(table, figures)
    for name, orders in violations.items():
        style, mark = ("red", "must be 0") if orders else ("green", "ok")
        table.add_row(name, f"{len(orders):,}", f"[{style}]{mark}[/]")
    console.print(table)
    _print_verdict(console, {name: orders for name, orders in violations.items() if orders})


def _add_events(table: Table, course: Course, figures: Figures) -> None:
    table.add_row("Orders committed", f"{figures.committed:,}", f"{course.commits_per_second:,.0f} per second")
    table.add_row("Orders rolled back", f"{course.rolled_back:,}")
    table.add_row("Orders confirmed", f"{figures.confirmed:,}")
    table.add_row("Parcels packed", f"{figures.packed:,}")
    table.add_row("Charges booked", f"{figures.charged:,}", f"on {figures.accounts:,} accounts, in order")
    table.add_row("Statements relayed to Kafka", f"{figures.relayed:,}", "read there in order")
    table.add_row("Customers reminded", f"{figures.reminded:,}")
    table.add_row("Reminders taken back in time", f"{figures.taken_back:,}")
    table.add_row("Attempts after one that failed", f"{figures.retries:,}")
    table.add_row(f"Dead letters, after {MAX_ATTEMPTS} attempts", f"{figures.given_up:,}")
    table.add_row("Dead letters, rejected at once", f"{figures.rejected:,}", end_section=True)


def _add_workers(table: Table, course: Course, figures: Figures) -> None:
    for each in course.workers:
        table.add_row(
            f"Calls of handlers in worker {each.number}", f"{each.handled:,}", "killed" if each.killed else ""
        )
    table.add_row(
        "Calls a second, at the best moment", f"{course.deliveries_per_second:,.0f}", "each writes what it did"
    )
    table.add_row(
        "Accounts that changed hands", f"{figures.accounts_shared:,}", "never in two at once", end_section=True
    )


def _add_repetitions(table: Table, figures: Figures) -> None:
    table.add_row("In hand when the worker was killed", f"{figures.in_hand:,}")
    if figures.repeated_otherwise:
        table.add_row("Delivered again for other reasons", f"{figures.repeated_otherwise:,}", "at least once")
    when = "" if figures.kill_to_repeat is None else f"after {figures.kill_to_repeat:.1f} seconds"
    table.add_row("Delivered again after the kill", f"{figures.repeated_by_kill:,}", when)
    table.add_row("Statements relayed again", f"{figures.relayed_again:,}", "at least once")
    table.add_row(
        "Parcels packed again by that", f"{figures.packed_again:,}", "handler not idempotent", end_section=True
    )


def _print_verdict(console: Console, found: Mapping[str, Sequence[int]]) -> None:
    verdict = Table.grid(padding=(0, 2))
    if found:
        verdict.add_row("[bold red]FAILED[/]", "The outbox did not keep its promise. Please report it, with the seed:")
    else:
        verdict.add_row(
            "[bold green]PASSED[/]",
            "Every message of a committed order was delivered or kept as a dead letter, kill or no kill, those of one "
            "account in their order and one at a time, also where they were relayed to. Nothing that was rolled back "
            "or taken back was delivered.",
        )
    for name, orders in found.items():
        more = ", ..." if len(orders) > _ORDERS_NAMED else ""
        verdict.add_row("", f"{name}: order {', '.join(map(str, orders[:_ORDERS_NAMED]))}{more}")
    console.print(verdict)
