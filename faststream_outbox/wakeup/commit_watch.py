"""Notices when drivers' connections end their transactions: unlike sessions, they call nobody after a commit."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from faststream_outbox.storage.sessions.raw import RawConnection

# Seconds between two looks at a connection: a moment after the publish, later a quarter of the transaction's age, so
# that a transaction of a second is noticed within a quarter of a second. The driver knows the state: no statement is
# sent for a look.
_FIRST_LOOK: Final = 0.01
_LONGEST: Final = 0.25
# Seconds from one look to the next. In a steady stream transactions that notify by themselves look too, so it waits a
# little for one; after a quiet time it does not.
_NEXT_LOOK: Final = 0.025
_QUIET: Final = 0.25


@dataclass(slots=True)
class _Watched:
    raw: RawConnection
    queues: set[str]
    since: float
    look_at: float
    # Whether the transaction was open at the last publish: one that is not may not have begun yet.
    was_open: bool


class CommitWatch:
    """Announces the queues of connections that have published, when their transactions have ended.

    At a look at a connection that is in a transaction its queues are announced too, because that may be the next one
    already. A wake-up too many costs a claim that finds nothing.
    """

    def __init__(self, announce: Callable[[Iterable[str]], None]) -> None:
        self._announce = announce
        self._watched: dict[int, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = -math.inf

    def add(self, loop: asyncio.AbstractEventLoop, raw: RawConnection, queue: str) -> None:
        """Announce a queue when this connection's transaction has ended."""
        now = time.monotonic()
        watched = self._watched.get(id(raw.connection))
        if watched is None:
            self._watched[id(raw.connection)] = _Watched(raw, {queue}, now, now + _FIRST_LOOK, raw.in_transaction)
        else:
            watched.queues.add(queue)
            watched.since, watched.was_open = now, raw.in_transaction
            watched.look_at = min(watched.look_at, now + _FIRST_LOOK)
        if self._timer is None:
            wait = _NEXT_LOOK if now < self._looked_at + _QUIET else _FIRST_LOOK
            self._timer = loop.call_later(wait, self._look, loop)

    def look(self, loop: asyncio.AbstractEventLoop) -> set[str]:
        """Look at the connections now, which saves the next look; return the queues to announce."""
        if self._timer is None:
            return set()
        self._timer.cancel()
        now = self._looked_at = time.monotonic()
        ready: set[str] = set()
        for key, watched in list(self._watched.items()):
            is_open = watched.raw.in_transaction
            if watched.look_at > now and (is_open or not watched.was_open):
                continue
            if not is_open:
                del self._watched[key]
            ready |= watched.queues
            watched.look_at = now + min(max((now - watched.since) / 4, _FIRST_LOOK), _LONGEST)
        self._timer = loop.call_later(_NEXT_LOOK, self._look, loop) if self._watched else None
        return ready

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if ready := self.look(loop):
            self._announce(ready)

    def finish(self) -> None:
        """Announce all queues that are left, and stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        queues = {queue for watched in self._watched.values() for queue in watched.queues}
        self._watched.clear()
        if queues:
            self._announce(queues)
