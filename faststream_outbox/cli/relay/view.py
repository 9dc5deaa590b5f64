"""The live view of a relay in a terminal."""

import asyncio
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from faststream_outbox.cli.relay.status import Status
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor

# Twice a second looks live and costs little.
_REDRAW_SECONDS: Final = 0.5
_COLUMNS: Final = ("relayed", "per s", "ready", "lag", "in flight", "blocked keys", "parked keys", "dead")
_COLOURS: Final = {"running": "green", "paused": "red", "starting": "yellow", "stopping": "yellow"}


class ProgressView(Loop):
    """Redraws a table at the bottom of the terminal; the log scrolls above it."""

    failure_event = "progress_failed"
    task = "Drawing the progress"

    def __init__(self, status: Status, monitor: Monitor) -> None:
        super().__init__(monitor)
        self._status = status
        # On stderr like the log, so that neither overwrites the other.
        self._live = Live(console=Console(stderr=True), auto_refresh=False, redirect_stdout=False)

    def start(self) -> None:
        """Take over the bottom of the terminal."""
        self._live.start()
        super().start()

    async def stop(self) -> None:
        """Draw a last time, and release the terminal."""
        await super().stop()
        self._live.update(draw(self._status), refresh=True)
        self._live.stop()

    async def step(self) -> None:
        """Draw, then wait."""
        self._live.update(draw(self._status), refresh=True)
        await asyncio.sleep(_REDRAW_SECONDS)


def draw(status: Status) -> RenderableType:
    """Return the lines of the relay, and a table with a row for each queue."""
    relayed, retried, refused = status.totals
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(status.state, style=_COLOURS[status.state]).append(status.description.removeprefix(status.state))
    line = f"to {status.to}   {relayed:,} relayed   {status.per_second():,.0f} rows/s"
    line += f"   lag {_age(status.lag)}   {retried:,} retried   {refused:,} refused"
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("queue", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for queue in status.queues:
        cells = [f"{status.relayed[queue]:,}", f"{status.per_second(queue):,.0f}"]
        if stats := status.backlog.get(queue):
            counts = (stats.in_flight, stats.blocked_keys, stats.parked_keys, stats.dead)
            cells += [f"{stats.ready:,}", _age(stats.oldest_due_age), *(f"{count:,}" for count in counts)]
        name = Text(queue).append(" paused", style="yellow") if queue in status.relay.paused_queues else Text(queue)
        table.add_row(name, *cells, *("…" for _ in _COLUMNS[len(cells) :]))
    return Group("", head, Text(line, no_wrap=True, overflow="ellipsis"), "", table)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    minute, hour = 60.0, 3600.0
    if seconds < minute:
        return f"{seconds:.1f} s"
    return f"{seconds / minute:.0f} min" if seconds < hour else f"{seconds / hour:.1f} h"
