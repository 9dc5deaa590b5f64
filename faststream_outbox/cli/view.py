"""What is seen in a terminal while a relay runs."""

import asyncio
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from faststream_outbox.cli.status import Status
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor

# Twice a second looks alive, and costs nothing.
_REDRAW_SECONDS: Final = 0.5
_COLUMNS: Final = ("relayed", "per s", "ready", "lag", "in flight", "blocked keys", "parked keys", "dead")
_COLOURS: Final = {"running": "green", "paused": "red", "starting": "yellow", "stopping": "yellow"}


class ProgressView(Loop):
    """Redraws a table at the bottom of the terminal; the log goes by above it."""

    failure_event = "progress_failed"
    task = "Drawing the progress"

    def __init__(self, status: Status, monitor: Monitor, console: Console) -> None:
        super().__init__(monitor)
        self._status = status
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=True, redirect_stdout=False)

    def start(self) -> None:
        """Take the bottom of the terminal."""
        self._live.start()
        super().start()

    async def stop(self) -> None:
        """Leave the last picture, and give the terminal back."""
        await super().stop()
        self._live.update(picture(self._status), refresh=True)
        self._live.stop()

    async def step(self) -> None:
        """Draw, and rest."""
        self._live.update(picture(self._status), refresh=True)
        await asyncio.sleep(_REDRAW_SECONDS)


def picture(status: Status) -> RenderableType:
    """Draw a line for the relay, and one for each queue."""
    figures = status.figures
    relayed, retried, refused = figures.done
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(f"{status.state}", style=_COLOURS[status.state]).append(status.in_words.removeprefix(status.state))
    told = f"to {status.to}   {relayed:,} relayed   {figures.per_second():,.0f} rows/s"
    told += f"   lag {_age(figures.lag)}   {retried:,} tried again   {refused:,} refused"
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("queue", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for queue in figures.queues:
        done = (f"{figures.relayed[queue]:,}", f"{figures.per_second(queue):,.0f}")
        stats = figures.backlog.get(queue)
        if stats is None:
            table.add_row(queue, *done, *("…" for _ in _COLUMNS[len(done) :]))
            continue
        counts = (stats.in_flight, stats.blocked_keys, stats.parked_keys, stats.dead)
        waiting = (f"{stats.ready:,}", _age(stats.oldest_due_age))
        table.add_row(queue, *done, *waiting, *(f"{count:,}" for count in counts))
    return Group("", head, Text(told, no_wrap=True, overflow="ellipsis"), "", table)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    minute, hour = 60.0, 3600.0
    if seconds < minute:
        return f"{seconds:.1f} s"
    return f"{seconds / minute:.0f} min" if seconds < hour else f"{seconds / hour:.1f} h"


def make_console() -> Console:
    """Draw where the log goes, so that neither writes over the other."""
    return Console(stderr=True)
