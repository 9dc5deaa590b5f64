"""How things end: once, not for ever, and with unstarted rows given back."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.storage import OutboxRow
from faststream_outbox.wakeup.wakeup import Announce

# How long the last words may take (releasing, settling, closing) when the time for draining is over.
_LAST_WORDS: Final = 5.0


class Shutdown:
    """Something that ends once, however many ask for it; whoever gives up waiting does not stop it."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether somebody has asked for the end."""
        return self._task is not None

    async def run(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End, or wait for the end that is under way."""
        if self._task is None:
            self._task = asyncio.create_task(end())
        await asyncio.shield(self._task)


async def in_time(ending: Awaitable[object]) -> None:
    """Wait for an end, not for ever: neither a silent server nor a handler that will not stop may keep us."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS):
            await ending


async def give_back(
    held: Sequence[OutboxRow], link: ReconnectingLane, monitor: Monitor, announce: Announce | None = None
) -> None:
    """Release rows, their delivery uncounted, and tell others; if that fails, their leases run out by themselves."""
    if not held:
        return
    try:
        async with asyncio.timeout(_LAST_WORDS):
            await link.run(lambda lane: lane.release(held))
    except Exception as error:  # noqa: BLE001 - whatever it is, others get the rows a little later
        message = f"{len(held)} rows could not be given back: {describe(error)}"
        monitor.report("release_failed", message, error=error)
        return
    if announce is not None:
        announce({one.queue for one in held})
