"""Says that rows have come: to the subscribers of this process directly, to those of others by NOTIFY."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from faststream_outbox.runtime.events import Monitor
from faststream_outbox.storage import AnySession, Store
from faststream_outbox.storage.commits import may_notify
from faststream_outbox.wakeup.listener import Listener
from faststream_outbox.wakeup.notifier import SPACING, Notifier

# How long the last announcements may take when we are stopped.
_LAST_WORDS: Final = 3.0

Wake = Callable[[], None]


class Wakeup:
    """The wake-ups of one broker. None of them is needed for a row to be found; polling finds what they miss.

    Example:
        wakeup = Wakeup(store)
        unsubscribe = wakeup.subscribe(["orders"], pipeline.wake)
        wakeup.start(listen=True)
        async with session_factory() as session, session.begin():
            await store.insert(session, row, notify=not wakeup.defer(session, row.queue))
        await wakeup.stop()

    """

    def __init__(self, store: Store, monitor: Monitor | None = None) -> None:
        self._store = store
        self._monitor = monitor or Monitor()
        self._subscribers: defaultdict[str, list[Wake]] = defaultdict(list)
        self._loop: asyncio.AbstractEventLoop | None = None
        # When others were last told of something, or a transaction was given the task to tell them.
        self._told_at = -math.inf
        self._notifier: Notifier | None = None
        self._listener: Listener | None = None

    def start(self, *, listen: bool) -> None:
        """Begin to announce what is committed, and with `listen`, now or later, to hear what others announce."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # not started, or left behind in a loop that is over
            self._loop, self._listener = loop, None
            self._notifier = Notifier(self._notify, self._monitor)
            self._notifier.start()
        if listen and self._listener is None:
            self._listener = Listener(self._store, self._hear, self._wake_all, self._monitor)
            self._listener.start()

    async def stop(self) -> None:
        """Announce what is still to be announced, for a few seconds at most, and fall silent."""
        await asyncio.sleep(0)  # lets the commits of other threads come in, which are on their way
        notifier, listener, self._notifier, self._listener = self._notifier, self._listener, None, None
        self._loop = None
        if listener is not None:
            await listener.stop()
        if notifier is not None:
            await notifier.finish(_LAST_WORDS)

    @property
    def alive(self) -> bool:
        """Whether every loop that was started is running."""
        parts = (self._notifier, self._listener)
        return self._loop is not None and all(part is None or part.alive for part in parts)

    def subscribe(self, queues: Iterable[str], wake: Wake) -> Callable[[], None]:
        """Have `wake` called when rows may have come to one of the queues; returns what ends it."""
        names = tuple(dict.fromkeys(queues))
        for queue in names:
            self._subscribers[queue].append(wake)

        def unsubscribe() -> None:
            for queue in names:
                with suppress(ValueError):
                    self._subscribers[queue].remove(wake)

        return unsubscribe

    def defer(self, session: AnySession, queue: str) -> bool:
        """Announce a queue after the session's commit. False: the INSERT has to carry the notification itself.

        So it is while this is not started: nobody might be there any more when the commit comes. And so it is when
        nothing was announced for a while, because it then arrives a round trip earlier. Commits that carry one wait for
        each other, so there is one in a while at most.
        """
        if self._loop is None:
            return False
        first = _Commit(self._committed, queue)
        commit = self._store.after_commit(session, first, key=(self, queue))
        if not isinstance(commit, _Commit):
            return False
        if commit is first and time.monotonic() >= self._told_at + SPACING and may_notify(session):
            self._told_at = time.monotonic()
            commit.is_told = True
        # Then every INSERT of the transaction carries one, which Postgres sends once: those before may have inserted
        # nothing, or have gone with a savepoint.
        return not commit.is_told

    def _committed(self, commit: "_Commit") -> None:
        """Hear of a commit, in whatever thread it was made."""
        loop, tell = self._loop, self._wake if commit.is_told else self._announce
        if loop is None:
            return  # stopped since: polling finds the row
        if _running_loop() is loop:
            tell(commit.queue)
        else:
            with suppress(RuntimeError):  # the loop was closed since
                loop.call_soon_threadsafe(tell, commit.queue)

    def _announce(self, queue: str) -> None:
        self.announce([queue])

    def announce(self, queues: Iterable[str]) -> None:
        """Say that rows have been committed: here at once, elsewhere within milliseconds. For the loop's own thread."""
        names = set(queues)
        self._told_at = time.monotonic()
        for queue in names:
            self._wake(queue)
        if self._notifier is not None:
            self._notifier.put(names)

    async def _notify(self, queues: Iterable[str]) -> None:
        """Notify other processes: on the connection that listens, and without one on any that the pool lends."""
        if self._listener is None or not await self._listener.notify(queues):
            await self._store.notify(queues)

    def _hear(self, queue: str) -> None:
        if queue:
            self._wake(queue)
        else:
            self._wake_all()

    def _wake(self, queue: str) -> None:
        for wake in tuple(self._subscribers.get(queue, ())):
            wake()

    def _wake_all(self) -> None:
        for wake in {wake for wakes in self._subscribers.values() for wake in wakes}:
            wake()


@dataclass(slots=True, eq=False)
class _Commit:
    """The commit of a transaction that has rows for a queue."""

    hear: Callable[["_Commit"], None]
    queue: str
    # Whether the transaction itself tells other processes, by each of its statements.
    is_told: bool = False

    def __call__(self) -> None:
        self.hear(self)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
