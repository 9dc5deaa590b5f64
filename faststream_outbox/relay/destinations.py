"""Destinations that accept nothing for now: their rows wait, and those for other destinations do not."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from faststream_outbox.engine.claim.prefetch import MOST_BYTES
from faststream_outbox.relay.routing import Routes
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import OutboxRow

# How many paused destinations to name; of those beyond them only a count is shown. There may be as many as keys: the
# subjects of one stream.
NAMED: Final = 30
# How long to wait between two tries: short at first, then doubled up to the maximum.
_FIRST_WAIT: Final = 0.2
_MAX_WAIT: Final = 2.0
# A destination that is paused again within this time keeps its waits.
_SAME_PAUSE_SECONDS: Final = 10.0
# For how long to give back rows whose destination only their claim shows: twice as long as it has been paused, within
# these bounds. Each look costs a claim, and when the destination accepts again they come that much later.
_SHORTEST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 30.0
# How many destinations that rows have chosen to remember; of those beyond it none is known.
_REMEMBERED: Final = 10_000
# A destination that no call has tried for so long has no rows that wait here: they were deleted, or another relay has
# them. Rows that were given back come again sooner.
_FORGET_AFTER: Final = 60.0
_FORGET_EVERY: Final = 15.0
# How many bytes the calls that wait may keep: a relay claims nothing while it has twice as many in hand.
_MOST_BYTES: Final = MOST_BYTES // 2


@dataclass(slots=True)
class _Pause:
    reason: Exception
    since: float
    wait: float
    # Whether the log has named the destination.
    named: bool
    # The call that keeps its rows and tries again with them; None if there is none.
    prober: object | None = None
    # When any call may try, if none does.
    until: float = field(default=0.0)


class Destinations:
    """Pauses single destinations while the broker itself answers.

    Of a paused destination one call keeps its rows and tries them again; other calls give theirs back. A queue whose
    rows all go there is not claimed meanwhile, nor until the next try if no call keeps rows.
    """

    def __init__(
        self,
        routes: Routes,
        monitor: Monitor,
        *,
        pause_queues: Callable[[Collection[str]], None],
        suspect_waits: Callable[[], bool],
        max_waiting: int,
    ) -> None:
        self._fixed_by_queue = routes.fixed_by_queue
        self._fixed = frozenset(self._fixed_by_queue.values())
        self._known = set(routes.fixed)
        self._monitor = monitor
        self._pause_queues = pause_queues
        # Whether a row has to run alone: it cannot while a call keeps rows.
        self._suspect_waits = suspect_waits
        # The calls that keep rows of a paused destination, and so a worker, each with the bytes of its rows.
        self._waiting: dict[object, int] = {}
        self._max_waiting = max_waiting
        # The destinations that each call is to try.
        self._probes: dict[object, set[str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._forgetting: asyncio.TimerHandle | None = None
        self._pauses: dict[str, _Pause] = {}
        # How many of them the log has named, and how many there will be when it says their number next.
        self._named = 0
        self._next_count = NAMED + 1
        # How long each destination waited last, and until when that counts.
        self._waits: dict[str, tuple[float, float]] = {}
        self._paused_queues: frozenset[str] = frozenset()
        self._closed = asyncio.Event()

    @property
    def paused(self) -> dict[str, Exception]:
        """The destinations that accept nothing, each with the reason."""
        return {destination: pause.reason for destination, pause in self._pauses.items()}

    def is_paused(self, destination: str) -> bool:
        """Return whether a destination accepts nothing; the call that is to try it may find out that it does."""
        return destination in self._pauses

    def knows(self, destination: str) -> bool:
        """Return whether a route names a destination, or it has accepted a message: no row alone has chosen it."""
        return destination in self._known

    def admits(self, destination: str, call: object) -> bool:
        """Return whether a call may send to a destination: it is not paused, or this call is to try."""
        pause = self._pauses.get(destination)
        if pause is None or pause.prober is call:
            return True
        if self._closed.is_set() or pause.prober is not None or time.monotonic() < pause.until:
            return False
        self._probe(destination, pause, call)
        return True

    def begin(self, destination: str, error: Exception) -> None:
        """Note that a destination accepts nothing, while the broker answers."""
        now = time.monotonic()
        wait, kept_until = self._waits.get(destination, (_FIRST_WAIT, 0.0))
        if (pause := self._pauses.get(destination)) is None:
            wait = wait if now < kept_until else _FIRST_WAIT
            pause = self._pauses[destination] = _Pause(error, now, wait, named=self._named < NAMED)
            self._report_pause(destination, pause)
        pause.reason = error  # the broker may say more at a later try
        pause.until = now + pause.wait
        self._update_queues(destination)
        self._forget_later()

    def end(self, destination: str) -> None:
        """Note that a destination has accepted a message."""
        if len(self._known) < _REMEMBERED:
            self._known.add(destination)
        pause = self._pauses.pop(destination, None)
        if pause is None:
            return
        self._waits[destination] = (pause.wait, time.monotonic() + _SAME_PAUSE_SECONDS)
        self._update_queues(destination)
        self._report_end(destination, pause, f"{destination} accepts messages again.")

    async def wait(self, destination: str, call: object, size: int) -> bool:
        """Wait before a call tries a paused destination again; return False if it has to give its rows back.

        `size` is how many bytes the rows have that it keeps.
        """
        pause = self._pauses.get(destination)
        if pause is None:
            return True
        if self._closed.is_set() or pause.prober not in (None, call):
            return False
        seconds, pause.wait = pause.wait, min(2 * pause.wait, _MAX_WAIT)
        self._waiting.pop(call, None)
        if len(self._waiting) >= self._max_waiting or sum(self._waiting.values()) + size > _MOST_BYTES:
            return False
        self._waiting[call] = size
        self._probe(destination, pause, call)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        return not self._closed.is_set() and not self._suspect_waits()

    def leave(self, call: object) -> None:
        """Note that a call has ended: another one may try the destinations that it tried, after a wait."""
        self._waiting.pop(call, None)
        for destination in self._probes.pop(call, ()):
            pause = self._pauses.get(destination)
            if pause is not None and pause.prober is call:
                pause.prober, pause.until = None, time.monotonic() + pause.wait
                self._update_queues(destination)

    def delay(self, destination: str, row: OutboxRow) -> float:
        """Return for how many seconds to give back a row: not at all, if its queue is not claimed meanwhile."""
        pause = self._pauses.get(destination)
        if pause is None or row.queue in self._paused_queues:
            return 0.0
        return min(max(_SHORTEST_DELAY, 2 * (time.monotonic() - pause.since)), _LONGEST_DELAY)

    def _report_pause(self, destination: str, pause: _Pause) -> None:
        """Log a pause by name, or for many from time to time how many there are."""
        count, error = len(self._pauses), pause.reason
        if pause.named:
            self._named += 1
            message = f"{destination} accepts nothing; its rows wait, and others are sent: {error}"
        elif count >= self._next_count:
            self._next_count = 2 * count
            message = f"{count:,} destinations accept nothing, and the first {NAMED} are named here; the last: {error}"
        else:
            return
        self._monitor.report("destination_paused", message, level=logging.WARNING, error=error, destination=destination)

    def _report_end(self, destination: str, pause: _Pause, message: str) -> None:
        """Log the end of a pause that was named, and the end of those that were not when few are left."""
        if len(self._pauses) <= NAMED and self._next_count > NAMED + 1:
            self._next_count = NAMED + 1
            few = f"Of many destinations {len(self._pauses)} are left that accept nothing."
            self._monitor.report("destination_resumed", few, level=logging.INFO, destination=destination)
        if pause.named:
            self._named -= 1
            self._monitor.report("destination_resumed", message, level=logging.INFO, destination=destination)

    def close(self) -> None:
        """Make every call that waits give its rows back: the relay stops."""
        self._closed.set()
        for timer in (self._timer, self._forgetting):
            if timer is not None:
                timer.cancel()

    def _probe(self, destination: str, pause: _Pause, call: object) -> None:
        if pause.prober is not call:
            pause.prober = call
            self._probes.setdefault(call, set()).add(destination)
            self._update_queues(destination)

    def _update_queues(self, changed: str | None = None) -> None:
        """Claim no queue whose fixed destination waits; `changed` is the only destination that may have changed."""
        if changed is not None and changed not in self._fixed:
            return  # there may be as many as there are keys
        now = time.monotonic()
        pauses = {to: pause for to in self._fixed if (pause := self._pauses.get(to)) is not None}
        waits = {to: pause for to, pause in pauses.items() if pause.prober is not None or now < pause.until}
        paused = frozenset(queue for queue, to in self._fixed_by_queue.items() if to in waits)
        if paused != self._paused_queues:
            self._paused_queues = paused
            self._pause_queues(paused)
        untried = [pause.until for pause in waits.values() if pause.prober is None]
        if self._timer is not None:
            self._timer.cancel()
        if untried and not self._closed.is_set():
            self._timer = asyncio.get_running_loop().call_later(min(untried) - now, self._update_queues)

    def _forget_later(self) -> None:
        if self._forgetting is None and not self._closed.is_set():
            self._forgetting = asyncio.get_running_loop().call_later(_FORGET_EVERY, self._forget)

    def _forget(self) -> None:
        """Forget the destinations that no call has tried for long, and the waits that do not count any more."""
        now, self._forgetting = time.monotonic(), None
        self._waits = {to: wait for to, wait in self._waits.items() if now < wait[1]}
        untried = [
            to for to, pause in self._pauses.items() if pause.prober is None and now >= pause.until + _FORGET_AFTER
        ]
        for destination in untried:
            pause = self._pauses.pop(destination)
            self._report_end(destination, pause, f"No row that goes to {destination} waits here any more.")
        if self._pauses or self._waits:
            self._forget_later()
