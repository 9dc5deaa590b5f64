"""Hears of rows that other processes publish, and notices when it no longer does."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Final

from faststream_outbox.runtime.backoff import Backoff
from faststream_outbox.runtime.events import Monitor, describe
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage import Listening, Store
from faststream_outbox.storage.errors import advice

# A connection that died silently is noticed after the one and the other together at most.
_TEST_EVERY: Final = 2.0
_TEST_LIMIT: Final = 2.0
# To connect and to LISTEN: a slow handshake passes, a lost one does not keep us.
_OPEN_LIMIT: Final = 10.0
# Behind a pooler it may never work, so it is tried seldom; and polling goes on meanwhile.
_LONGEST_WAIT: Final = 5.0


class Listener(Loop):
    """Keeps one connection listening; `on_gap` is called when it hears again and may have missed something."""

    failure_event = "listen_lost"
    task = "Listening"

    def __init__(
        self, store: Store, on_queue: Callable[[str], None], on_gap: Callable[[], None], monitor: Monitor
    ) -> None:
        super().__init__(monitor)
        self._backoff = Backoff(longest=_LONGEST_WAIT)
        self._store = store
        self._on_queue = on_queue
        self._on_gap = on_gap
        self._stack = AsyncExitStack()
        self._listening: Listening | None = None
        self._hears = False
        self._reported = False
        # Whether it is known if anything is heard.
        self._tried = asyncio.Event()

    async def stop(self) -> None:
        """Stop listening."""
        self._tried.set()
        await super().stop()
        await self._close()

    async def notify(self, queues: Iterable[str]) -> bool:
        """Notify others on the connection that is open anyway; False while nothing is heard there, nor sent."""
        await self._tried.wait()
        if self._listening is None or not self._hears:
            return False
        try:
            await self._listening.notify(queues)
        except Exception:  # noqa: BLE001 - that it is lost, the loop learns by itself, and says so
            return False
        return True

    async def step(self) -> None:
        """See whether we hear ourselves, and be content with that for a while."""
        if self._listening is None:
            await within(_OPEN_LIMIT, self._open())
        if self._listening is not None and await _heard(self._listening):
            self._welcome()
            await _sleep_unless_lost(self._listening)

    async def _open(self) -> None:
        self._listening = await self._stack.enter_async_context(self._store.listen(self._on_queue))

    def _welcome(self) -> None:
        if not self._hears:
            self._hears = True
            self._tried.set()
            self._on_gap()
        if self._reported:
            self._reported = False
            self._monitor.report("listen_restored", "Notifications are heard again.", level=logging.INFO)

    async def _recover(self, error: BaseException) -> None:
        self._hears = False
        self._tried.set()
        if not self._reported:
            self._reported = True
            unheard = _POOLED if isinstance(error, TimeoutError) else advice(error)
            message = _LOST.format(error=describe(error)) + unheard
            self._monitor.report(self.failure_event, message, level=logging.WARNING, error=error)
        await self._close()
        await self._backoff.wait()

    async def _close(self) -> None:
        stack, self._stack, self._listening = self._stack, AsyncExitStack(), None
        await stack.aclose()


async def _heard(listening: Listening) -> bool:
    try:
        await within(_TEST_LIMIT, listening.test())
    except TimeoutError:
        if listening.can_test():
            raise
        return False  # the pool was empty: nothing was sent, and nothing is known
    return True


async def _sleep_unless_lost(listening: Listening) -> None:
    try:
        async with asyncio.timeout(_TEST_EVERY):
            await listening.wait_lost()
    except TimeoutError:
        return
    raise ConnectionError("The connection was closed.")


_LOST: Final = (
    "Notifications are not heard ({error}). Until they are, and it is tried again every few seconds, rows are found by "
    "polling, after max_fetch_interval at the latest."
)
_POOLED: Final = (
    " A pooler in transaction mode never lets them through: connect the broker's engine to Postgres directly, or "
    "through a pool in session mode."
)
