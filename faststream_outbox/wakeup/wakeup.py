"""Wakes subscribers when rows have been committed: those of this process directly, those of others by NOTIFY."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.storage import AnySession, Store
from faststream_outbox.storage.commits import in_savepoint, may_notify
from faststream_outbox.storage.sessions.raw import RawConnection, raw_connection
from faststream_outbox.wakeup.commit_watch import CommitWatch
from faststream_outbox.wakeup.control_reader import ControlReader
from faststream_outbox.wakeup.listener import Listener
from faststream_outbox.wakeup.node_registrar import NodeRegistrar
from faststream_outbox.wakeup.notifier import SPACING, Notifier

# How many seconds the last announcements may take during a stop.
_LAST_ANNOUNCEMENTS: Final = 3.0

Wake = Callable[[], None]
# Wakes the subscribers of these queues, here and in other processes.
Announce = Callable[[Iterable[str]], None]


class Wakeup:
    """The wake-ups of one broker. They only save time: polling finds each row without them.

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
        # Called for queues that nobody has subscribed to.
        self._others: list[Wake] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        # When a transaction was last asked to notify other processes.
        self._notified_at = -math.inf
        # The driver's connections that have published, and may have committed since.
        self._commits = CommitWatch(self._announce_now)
        self._notifier: Notifier | None = None
        self._listener: Listener | None = None
        self._control_reader: ControlReader | None = None
        self._registrar: NodeRegistrar | None = None

    def start(self, *, listen: bool) -> None:
        """Start to announce commits and, with `listen`, now or in a later call, to receive what others announce."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # not started, or started in an event loop that has ended
            self._loop, self._listener, self._control_reader, self._registrar = loop, None, None, None
            self._notifier = Notifier(self._notify, self._monitor)
            self._notifier.start()
        if listen and self._listener is None:
            if self._store.registry is not None:
                self._registrar = NodeRegistrar(self._store.nodes, self._store.registry, self._monitor)
                self._registrar.start()
            self._listener = Listener(self._store, self._receive, self._monitor, self._registrar)
            self._listener.start()
            if self._store.control_table is not None:
                self._control_reader = ControlReader(self._store, lambda: self._receive(""), self._monitor)
                self._control_reader.start()

    async def stop(self) -> None:
        """Send the announcements that are still waiting, for a few seconds at most, and stop."""
        await asyncio.sleep(0)  # commits of other threads that are under way arrive first
        self._commits.finish()
        notifier, listener, self._notifier, self._listener = self._notifier, self._listener, None, None
        reader, self._control_reader = self._control_reader, None
        registrar, self._registrar = self._registrar, None
        self._loop = None
        # The row of this node goes before its lock: no other node has to remove it.
        for part in (reader, registrar, listener):
            if part is not None:
                await part.stop()
        if notifier is not None:
            await notifier.finish(_LAST_ANNOUNCEMENTS)

    @property
    def alive(self) -> bool:
        """Whether every loop that was started is running."""
        parts = (self._notifier, self._listener, self._control_reader, self._registrar)
        return self._loop is not None and all(part is None or part.alive for part in parts)

    def subscribe(self, queues: Iterable[str], wake: Wake) -> Callable[[], None]:
        """Call `wake` whenever one of the queues may have new rows; return a function that ends it."""
        return _add(wake, [self._subscribers[queue] for queue in dict.fromkeys(queues)])

    def subscribe_to_others(self, wake: Wake) -> Callable[[], None]:
        """Call `wake` whenever a queue to which nobody has subscribed may have new rows; return what ends it."""
        return _add(wake, [self._others])

    def defer(self, session: AnySession, queue: str, *, inserts: bool = False) -> bool:
        """Announce a queue after the session's commit; return False if the INSERT must carry the notification itself.

        It must while this is not started, because it may be gone when the commit comes. It also must when no other has
        done so for a while, because the notification then arrives a round trip earlier, and is one for all that were
        committed before. Commits that carry one wait for each other in Postgres, so there is one per `SPACING` at most.

        Args:
            session: What the caller publishes through.
            queue: The name of the queue.
            inserts: Whether the INSERT is sure to add a row: if it adds none, it notifies nobody.

        """
        if self._loop is None:
            return False
        if (raw := raw_connection(session)) is not None:
            return self._watch(raw, queue)
        first = _Commit(self._committed, queue)
        commit = self._store.after_commit(session, first, key=(self, queue))
        if not isinstance(commit, _Commit):
            return False
        if commit is first and self._is_due() and may_notify(session):
            commit.notifies = True
            # What a savepoint takes back is not sent, although the transaction commits.
            if inserts and not in_savepoint(session):
                commit.lent = self._lend(queue)
        # In a transaction that notifies by itself every INSERT carries the notification, which Postgres sends once: the
        # first INSERT may insert nothing, or be rolled back with a savepoint.
        return not commit.notifies

    def _watch(self, raw: RawConnection, queue: str) -> bool:
        """Announce a queue when a driver's connection has ended its transaction; return False as `defer` does."""
        if _running_loop() is not self._loop or self._loop is None:
            return False  # another thread cannot look at the connection
        if self._is_due():
            committed = self._commits.look(self._loop)
            self._wake(committed)
            if self._notifier is not None:
                # Never repaid, because we do not see how the transaction ends; but one statement follows for many.
                self._notifier.lend(queue, new=queue in committed)
                self._notifier.put(committed - {queue})
            return False
        self._commits.add(self._loop, raw, queue)
        return True

    def _is_due(self) -> bool:
        """Return whether a transaction should notify by itself, and count it as one that does."""
        now = time.monotonic()
        if now < self._notified_at + SPACING:
            return False
        self._notified_at = now
        return True

    def _lend(self, queue: str) -> bool:
        """Lend a queue to a transaction that notifies by itself: it does so for those that have committed before."""
        return self._notifier is not None and _running_loop() is self._loop and self._notifier.lend(queue)

    def _committed(self, commit: "_Commit") -> None:
        """Wake and notify after a commit, which may have been made in any thread."""
        if commit.lent and self._notifier is not None:
            self._notifier.repay(commit.queue)
        loop = self._loop
        wake: Announce = self._wake if commit.notifies else self.announce
        if loop is None:
            return  # stopped since: polling finds the row
        if _running_loop() is loop:
            wake([commit.queue])
        else:
            with suppress(RuntimeError):  # the loop was closed since
                loop.call_soon_threadsafe(wake, [commit.queue])

    def announce(self, queues: Iterable[str]) -> None:
        """Wake the subscribers of these queues: here at once, elsewhere within milliseconds.

        Call it in the thread of the event loop.
        """
        names = set(queues)
        self._wake(names)
        if self._notifier is not None:
            self._notifier.put(names)

    def _announce_now(self, queues: Iterable[str]) -> None:
        """Announce queues whose rows were committed a while ago."""
        names = set(queues)
        self._wake(names)
        if self._notifier is not None:
            self._notifier.put(names, now=True)

    async def _notify(self, queues: Iterable[str]) -> None:
        """Notify other processes on the listening connection, or on one from the pool if that does not work."""
        if self._listener is None or not await self._listener.notify(queues):
            await self._store.notify(queues)

    async def unserved(self, known: Collection[str]) -> dict[str, int]:
        """Count the due rows of queues that nobody reads, on the listening connection; none without it."""
        return {} if self._listener is None else await self._listener.unserved(known)

    def _receive(self, queue: str) -> None:
        """Wake the subscribers of a queue; an empty name stands for all queues."""
        self._wake([queue] if queue else tuple(self._subscribers))

    def _wake(self, queues: Iterable[str]) -> None:
        for wake in dict.fromkeys(wake for queue in queues for wake in self._subscribers.get(queue) or self._others):
            try:
                wake()
            except Exception as error:  # noqa: BLE001 - the rows are committed, and polling finds them
                message = f"Could not wake a subscriber; it finds the new rows by polling: {describe(error)}"
                self._monitor.report("announce_failed", message, error=error)


@dataclass(slots=True, eq=False)
class _Commit:
    """The commit of a transaction that has rows for a queue."""

    after: Callable[["_Commit"], None]
    queue: str
    # Whether the transaction itself notifies other processes, with each of its statements.
    notifies: bool = False
    # Whether it also notifies for those that have committed before.
    lent: bool = False

    def __call__(self) -> None:
        self.after(self)


def _add(wake: Wake, lists: Sequence[list[Wake]]) -> Callable[[], None]:
    for each in lists:
        each.append(wake)

    def remove() -> None:
        for each in lists:
            with suppress(ValueError):
                each.remove(wake)

    return remove


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
