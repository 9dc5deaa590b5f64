"""What whoever runs a soak sees: progress while it runs, numbers and violations at its end."""

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.soak.checker import kinds
from tests.soak.round import Result

# A line in this many seconds, where nobody watches a bar.
LINE_SECONDS: Final = 5.0
MAX_SHOWN: Final = 20
MAX_STORIES: Final = 3


class Display:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._began = time.monotonic()
        self._seconds = seconds
        self._line_at = self._began + LINE_SECONDS
        self._violations = 0
        columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = self._bar.add_task("starting", total=seconds) if self._bar else None

    def show(self, counts: Counter[str]) -> None:
        """Show where a round stands."""
        text = (
            f"{counts['rows inserted']} rows inserted, {counts['rows acked']} acked, {counts['rows retried']} retried, "
            f"{counts['leases found lost']} leases lost, {self._violations} violations"
        )
        elapsed = time.monotonic() - self._began
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=min(elapsed, self._seconds), description=text)
        elif time.monotonic() >= self._line_at:
            self._console.print(f"{elapsed:6.0f} s  {text}", soft_wrap=True)
            self._line_at = time.monotonic() + LINE_SECONDS

    def ended(self, result: Result) -> None:
        """Tell how a round ended."""
        self._violations += len(result.violations)
        found = dict(kinds(result.violations)) or "no violations"
        did = f"{result.counts['rows inserted']} rows, drained in {result.drain_seconds:.1f} s"
        self._console.print(f"seed {result.seed}: {did}: {found}", soft_wrap=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def show_results(console: Console, results: Sequence[Result]) -> None:
    """Print what all rounds did, and what they broke."""
    if not results:
        console.print("No round was checked.")
        return
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
        faults.update(result.faults)
    table = Table("what", "times", title="What happened")
    for name, number in sorted(counts.items()):
        table.add_row(name, str(number))
    table.add_section()
    for name, number in sorted(faults.items()):
        table.add_row(name, str(number))
    console.print(table)
    for result in results:
        if result.violations:
            _show_violations(console, result)
    if not any(result.violations for result in results):
        console.print("No violations.")


def _show_violations(console: Console, result: Result) -> None:
    table = Table("rule", "row", "evidence", title=f"Violations, seed {result.seed}")
    for violation in result.violations[:MAX_SHOWN]:
        table.add_row(violation.kind, violation.uid, violation.text)
    console.print(table)
    left_out = len(result.violations) - MAX_SHOWN
    if left_out > 0:
        console.print(f"... and {left_out} more.")
    for uid, lines in list(result.stories.items())[:MAX_STORIES]:
        console.print(f"\nThe history of {uid}:", *lines, sep="\n  ", markup=False, highlight=False)
