"""Receives the notifications of other processes, and detects when they no longer arrive."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

from faststream_outbox.runtime.loop import Backoff, Loop
from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage import Listening, Store
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.errors import advice
from faststream_outbox.storage.nodes import LOOK_EVERY
from faststream_outbox.storage.operating.control import CONTROL_CHANGED
from faststream_outbox.wakeup.node_registrar import NodeRegistrar

# A connection that died silently is detected after the sum of the two at most.
_TEST_EVERY: Final = 1.9
_TEST_LIMIT: Final = 2.0
# Programs in other languages may notify without a queue, and often: each such notification must not cost a look.
_BETWEEN_LOOKS: Final = 0.05
# To connect and to LISTEN: long enough for a slow handshake, short enough to retry after a lost one.
_OPEN_LIMIT: Final = 10.0
# Behind a pooler LISTEN may never work, so it is retried rarely; polling goes on meanwhile. A server that cannot be
# reached is tried as often as by every loop: one that replaces it should be found soon.
_LONGEST_WAIT_POOLED: Final = 5.0


class Listener(Loop):
    """Keeps one connection listening, and calls `on_queue` with the name of each queue that has new rows.

    After a reconnect the name is empty, which stands for all queues: notifications may have been lost.
    """

    failure_event = "listen_lost"
    task = "Listening"

    def __init__(
        self,
        store: Store,
        on_queue: Callable[[str], None],
        monitor: Monitor,
        registrar: NodeRegistrar | None = None,
    ) -> None:
        super().__init__(monitor)
        self._registrar = registrar
        self._pooled_backoff = Backoff(longest=_LONGEST_WAIT_POOLED)
        self._store = store
        self._nodes = store.nodes
        self._test_at = 0.0
        self._on_queue = on_queue
        self._control = store.control
        # Set when a notification says that the control table has changed.
        self._look_now = asyncio.Event()
        self._stack = AsyncExitStack()
        self._listening: Listening | None = None
        self._receives = False
        self._reported = False
        # Set when the first test has shown whether notifications arrive.
        self._tested = asyncio.Event()

    def start(self) -> None:
        """Start to listen."""
        self._nodes.own.begin()
        self._nodes.lock_expected = True
        super().start()

    async def stop(self) -> None:
        """Stop listening."""
        self._tested.set()
        self._nodes.lock_expected = False
        await super().stop()
        await self._close()

    async def notify(self, queues: Iterable[str]) -> bool:
        """Send NOTIFY on the listening connection; return False, with nothing sent, while that does not work."""
        await self._tested.wait()
        if self._listening is None or not self._receives:
            return False
        try:
            await self._listening.notify(queues)
        except Exception:  # noqa: BLE001 - the loop finds the lost connection by itself and reports it
            return False
        return True

    async def unserved(self, known: Collection[str]) -> dict[str, int]:
        """Count the due rows of queues that nobody reads; none while the connection is lost."""
        return {} if self._listening is None else await self._listening.unserved(known)

    async def step(self) -> None:
        """Open the connection if need be, test it with a notification to ourselves, and look which nodes are alive."""
        if self._listening is None:
            self._nodes.watch.reset()
            self._test_at = 0.0
            listening = self._stack.enter_async_context(self._store.listen(self._receive))
            self._listening = await within(_OPEN_LIMIT, listening)
        await within(_TEST_LIMIT, self._look(self._listening))
        self._nodes.lock_expected = False
        if time.monotonic() >= self._test_at:
            if not await _arrives(self._listening):
                return
            self._confirm()
            self._test_at = time.monotonic() + _TEST_EVERY
        await self._wait_while_connected(self._listening)

    def _receive(self, queue: str) -> None:
        if queue == CONTROL_CHANGED and self._store.control_table is not None:
            self._look_now.set()
        self._on_queue(queue)

    async def _wait_while_connected(self, listening: Listening) -> None:
        """Wait until the next look; raise if the connection is lost meanwhile."""
        lost: asyncio.Future[Any] = asyncio.ensure_future(listening.wait_lost())
        asked: asyncio.Future[Any] = asyncio.ensure_future(self._look_now.wait())
        try:
            done, _ = await asyncio.wait([lost], timeout=_BETWEEN_LOOKS)
            if not done:
                wait = min(LOOK_EVERY, max(0.0, self._nodes.watch.concludes_at - lease_now()))
                done, _ = await asyncio.wait([lost, asked], timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            asked.cancel()
        if lost in done:
            raise ConnectionError("The connection was closed.")

    async def _look(self, listening: Listening) -> None:
        """Look which nodes are alive, and which queues are paused.

        Wake all subscribers if a node is dead, because its rows can be recovered, or if queues were paused or resumed.
        """
        self._look_now.clear()
        version = self._control.version
        look = await listening.look(self._nodes.own)
        found_dead = look is not None and self._nodes.watch.add(look)
        if found_dead or self._control.version != version:
            self._on_queue("")
        if self._registrar is not None and look is not None:
            self._registrar.note_look()

    def _confirm(self) -> None:
        if not self._receives:
            self._receives = True
            self._tested.set()
            self._backoff.reset()
            self._pooled_backoff.reset()
            self._on_queue("")
        if self._reported:
            self._reported = False
            self._monitor.report("listen_restored", "Notifications arrive again.", level=logging.INFO)

    async def _recover(self, error: BaseException) -> None:
        self._receives = False
        self._tested.set()
        self._nodes.lock_expected = False
        # The connection works, and what was sent on it did not arrive.
        pooled = isinstance(error, TimeoutError) and self._listening is not None
        if not self._reported:
            self._reported = True
            hint = _POOLED if pooled else advice(error)
            message = _LOST.format(error=describe(error)) + hint
            self._monitor.report(self.failure_event, message, level=logging.WARNING, error=error)
        await self._close()
        await (self._pooled_backoff if pooled else self._backoff).wait()

    async def _close(self) -> None:
        stack, self._stack, self._listening = self._stack, AsyncExitStack(), None
        self._nodes.own.note_lost()
        self._nodes.watch.reset()
        if self._registrar is not None:
            self._registrar.note_lost()
        await stack.aclose()


async def _arrives(listening: Listening) -> bool:
    """Return whether a test notification arrived; raise `TimeoutError` if it was sent and did not."""
    try:
        await within(_TEST_LIMIT, listening.test())
    except TimeoutError:
        if listening.can_test():
            raise
        return False  # the pool had no connection to send it with, so the test says nothing
    return True


_LOST: Final = (
    "Notifications do not arrive ({error}). The connection is retried every few seconds; until then new rows are found "
    "by polling, after max_fetch_interval at the latest."
)
_POOLED: Final = (
    " A pooler in transaction mode does not pass them on: connect the broker's engine to Postgres directly, or through "
    "a pooler in session mode."
)
