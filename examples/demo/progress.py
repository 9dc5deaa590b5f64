"""How far a run is: two bars in a terminal, a line now and then elsewhere."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

# Often enough to look alive in a terminal; a log wants fewer words.
REDRAW_SECONDS = 0.1
LINE_SECONDS = 1.0


@dataclass(frozen=True)
class Counts:
    """Orders to place, orders placed with either end, and messages settled."""

    orders: int
    confirmed: int
    cancelled: int
    settled: int

    @property
    def placed(self) -> int:
        """Orders that the shop is done with."""
        return self.confirmed + self.cancelled

    @property
    def messages(self) -> int:
        """Messages to settle, as far as is known: what was rolled back has none."""
        return self.orders - self.cancelled


async def show_progress(console: Console, count: Callable[[], Counts]) -> None:
    """Show how far the run is, until cancelled."""
    show = _draw_bars if console.is_interactive else _print_lines
    await show(console, count)


async def _draw_bars(console: Console, count: Callable[[], Counts]) -> None:
    columns = (
        TextColumn("  {task.description}", style="none"),
        BarColumn(bar_width=36),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        orders, messages = progress.add_task("orders placed"), progress.add_task("messages settled")

        def draw() -> None:
            now = count()
            progress.update(orders, completed=now.placed, total=now.orders)
            progress.update(messages, completed=now.settled, total=now.messages, refresh=True)

        await _repeat(draw, REDRAW_SECONDS)


async def _print_lines(console: Console, count: Callable[[], Counts]) -> None:
    def write() -> None:
        now = count()
        console.print(f"  {now.placed:,} of {now.orders:,} orders placed, {now.settled:,} messages settled")

    await _repeat(write, LINE_SECONDS)


async def _repeat(show: Callable[[], None], seconds: float) -> None:
    try:
        while True:
            await asyncio.sleep(seconds)
            show()
    finally:
        show()  # the last state of a run that ended between two looks
