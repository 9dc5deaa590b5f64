"""Destinations that accept nothing for now: their rows wait, and those for other destinations do not."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from faststream_outbox.relay.routing import Routes
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import OutboxRow

# How long to wait between two tries: short at first, then doubled up to the maximum.
_FIRST_WAIT: Final = 0.2
_MAX_WAIT: Final = 2.0
# A destination that is paused again within this time keeps its waits.
_SAME_PAUSE_SECONDS: Final = 10.0
# For how long to give back rows whose destination only their claim shows: twice as long as it has been paused, within
# these bounds. Each look costs a claim, and when the destination accepts again they come that much later.
_SHORTEST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 30.0


@dataclass(slots=True)
class _Pause:
    reason: Exception
    since: float
    wait: float
    # The call that keeps its rows and tries again with them; None if there is none.
    prober: object | None = None
    # When any call may try, if none does.
    until: float = field(default=0.0)


class Destinations:
    """Pauses single destinations while the broker itself answers.

    Of a paused destination one call keeps its rows and tries them again; other calls give theirs back. A queue whose
    rows all go there is not claimed meanwhile.
    """

    def __init__(self, routes: Routes, monitor: Monitor, *, pause_queues: Callable[[Collection[str]], None]) -> None:
        self._routes = routes
        self._monitor = monitor
        self._pause_queues = pause_queues
        self._pauses: dict[str, _Pause] = {}
        # How long each destination waited last, and until when that counts.
        self._waits: dict[str, tuple[float, float]] = {}
        self._paused_queues: frozenset[str] = frozenset()
        self._closed = asyncio.Event()

    @property
    def paused(self) -> dict[str, Exception]:
        """The destinations that accept nothing, each with the reason."""
        return {destination: pause.reason for destination, pause in self._pauses.items()}

    def admits(self, destination: str, call: object) -> bool:
        """Return whether a call may send to a destination: it is not paused, or this call is to try."""
        pause = self._pauses.get(destination)
        if pause is None or pause.prober is call:
            return True
        if self._closed.is_set() or pause.prober is not None or time.monotonic() < pause.until:
            return False
        self._probe(pause, call)
        return True

    def begin(self, destination: str, error: Exception) -> None:
        """Note that a destination accepts nothing, while the broker answers."""
        now = time.monotonic()
        wait, kept_until = self._waits.get(destination, (_FIRST_WAIT, 0.0))
        if (pause := self._pauses.get(destination)) is None:
            wait = wait if now < kept_until else _FIRST_WAIT
            pause = self._pauses[destination] = _Pause(error, now, wait)
            message = f"{destination} accepts nothing; its rows wait, and others are sent: {error}"
            self._monitor.report(
                "destination_paused", message, level=logging.WARNING, error=error, destination=destination
            )
        pause.until = now + pause.wait

    def end(self, destination: str) -> None:
        """Note that a destination has accepted a message."""
        pause = self._pauses.pop(destination, None)
        if pause is None:
            return
        self._waits[destination] = (pause.wait, time.monotonic() + _SAME_PAUSE_SECONDS)
        self._update_queues()
        message = f"{destination} accepts messages again."
        self._monitor.report("destination_resumed", message, level=logging.INFO, destination=destination)

    async def wait(self, destination: str, call: object) -> bool:
        """Wait before a call tries a paused destination again; return False if it has to give its rows back."""
        pause = self._pauses.get(destination)
        if pause is None:
            return True
        if self._closed.is_set() or pause.prober not in (None, call):
            return False
        self._probe(pause, call)
        seconds, pause.wait = pause.wait, min(2 * pause.wait, _MAX_WAIT)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        return not self._closed.is_set()

    def leave(self, call: object) -> None:
        """Note that a call has ended: another one may try the destinations that it tried."""
        for pause in self._pauses.values():
            if pause.prober is call:
                pause.prober, pause.until = None, time.monotonic() + pause.wait
                self._update_queues()

    def delay(self, destination: str, row: OutboxRow) -> float:
        """Return for how many seconds to give back a row: not at all, if its queue is not claimed meanwhile."""
        pause = self._pauses.get(destination)
        if pause is None or row.queue in self._paused_queues:
            return 0.0
        return min(max(_SHORTEST_DELAY, 2 * (time.monotonic() - pause.since)), _LONGEST_DELAY)

    def close(self) -> None:
        """Make every call that waits give its rows back: the relay stops."""
        self._closed.set()

    def _probe(self, pause: _Pause, call: object) -> None:
        if pause.prober is not call:
            pause.prober = call
            self._update_queues()

    def _update_queues(self) -> None:
        tried = {destination for destination, pause in self._pauses.items() if pause.prober is not None}
        paused = frozenset(queue for queue, to in self._routes.fixed_by_queue.items() if to in tried)
        if paused != self._paused_queues:
            self._paused_queues = paused
            self._pause_queues(paused)
