"""The progress of the demo: a table that updates itself in a terminal, or lines from time to time."""

import asyncio
from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from examples.demo.watch import QueueCount, Watch, WorkerCount

# Often in a terminal, which shows it as movement; seldom in a log.
REDRAW_SECONDS = 0.1
LINE_SECONDS = 2.0

_COLUMNS = ("ready", "in flight", "scheduled", "expired", "blocked", "dead", "calls", "/s")


async def show(console: Console, watch: Watch, orders: int) -> None:
    """Show how far the run is, until cancelled."""
    if console.is_interactive:
        await _show_table(console, watch, orders)
    else:
        await _repeat(lambda: console.print(summary(watch, orders), soft_wrap=True), LINE_SECONDS)


async def _show_table(console: Console, watch: Watch, orders: int) -> None:
    with Live(console=console, auto_refresh=False) as live:
        await _repeat(lambda: live.update(picture(watch, orders), refresh=True), REDRAW_SECONDS)


def picture(watch: Watch, orders: int) -> RenderableType:
    """Draw the orders as a bar, the queues as a table, and the workers as lines."""
    look = watch.look
    placed = look.accepted + look.cancelled
    bar = Table.grid(padding=(0, 1))
    bar.add_row("  orders placed", ProgressBar(orders, placed, width=36), f"{placed:,} of {orders:,}")
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, show_edge=False)
    table.add_column("queue", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for each in look.queues:
        numbers = (each.ready, each.in_flight, each.scheduled, each.expired, each.blocked, each.dead, each.handled)
        table.add_row(each.queue, *(f"{number:,}" for number in numbers), f"{watch.rate(each.queue):,.0f}")
    return Group("", bar, "", table, "", *(f"  {_worker_in_words(each)}" for each in look.workers))


def summary(watch: Watch, orders: int) -> str:
    """Return in a few short lines what the queues hold, and what the workers have done."""
    look = watch.look
    lines = [f"  {look.accepted + look.cancelled:,} of {orders:,} placed"]
    lines += [f"    {_in_words(each)}" for each in look.queues if each.waiting or each.handled]
    if look.workers:
        lines.append(f"    {'; '.join(map(_worker_in_words, look.workers))}")
    return "\n".join(lines)


def _in_words(count: QueueCount) -> str:
    held = {
        "ready": count.ready,
        "in flight": count.in_flight,
        "scheduled": count.scheduled,
        "expired": count.expired,
        "blocked": count.blocked,
        "dead": count.dead,
    }
    words = [f"{number:,} {what}" for what, number in held.items() if number]
    return f"{count.queue}: {', '.join([*words, f'{count.handled:,} calls'])}"


def _worker_in_words(count: WorkerCount) -> str:
    fate = ", killed" if count.killed else f", accounts in hand: {count.accounts}" if count.accounts else ""
    return f"worker {count.number}: {count.handled:,} calls{fate}"


async def _repeat(show: Callable[[], None], seconds: float) -> None:
    try:
        while True:
            await asyncio.sleep(seconds)
            show()
    finally:
        show()  # the last state of a run that ended between two looks
