"""How a pipeline ends: once, within a time limit, with rows that were not started given back."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.storage import OutboxRow
from faststream_outbox.wakeup.wakeup import Announce

# How many seconds each last step (release, settle, close) may take after the time for draining.
LAST_STEP_LIMIT: Final = 5.0


class Shutdown:
    """Runs the end once, however often it is asked for; a caller that stops waiting for it does not interrupt it."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether the end was asked for."""
        return self._task is not None

    async def run(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End, or wait for the end that is under way."""
        if self._task is None:
            self._task = asyncio.create_task(end())
        await asyncio.shield(self._task)


async def in_time(ending: Awaitable[object]) -> None:
    """Wait for a last step, 5 seconds at most: a silent server or a handler that ignores cancellation may never end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_STEP_LIMIT):
            await ending


async def give_back(
    held: Sequence[OutboxRow], lane: ReconnectingLane, monitor: Monitor, announce: Announce | None = None
) -> None:
    """Release rows, their delivery uncounted, and announce them; if that fails, their leases run out."""
    if not held:
        return
    try:
        async with asyncio.timeout(LAST_STEP_LIMIT):
            await lane.run(lambda connection: connection.release(held))
    except Exception as error:  # noqa: BLE001 - other processes get the rows when the leases have run out
        message = (
            f"Could not give back {len(held)} rows; they are delivered again when their leases have run out: "
            f"{describe(error)}"
        )
        monitor.report("release_failed", message, error=error)
        return
    if announce is not None:
        announce({one.queue for one in held})
