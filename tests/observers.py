"""What was notified, reported and woken, recorded for tests to await."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from faststream_outbox.runtime.telemetry import Monitor

# The connection that listens, by what it has run last; it is the one that notifies too.
LISTENERS = """SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND query ~* '^(LISTEN|SELECT pg_notify|SELECT pg_backend_pid)'
   AND pid <> pg_backend_pid()"""


class NotifiedQueues:
    """Records the queues that were notified, and waits for one."""

    def __init__(self) -> None:
        self.queues: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, queue: str) -> None:
        self.queues.append(queue)
        self._news.set()

    async def until(self, queue: str) -> list[str]:
        """Wait for a queue, and return all that were notified until then."""
        async with asyncio.timeout(30):
            while queue not in self.queues:
                self._news.clear()
                await self._news.wait()
        return self.queues


class Reports(Monitor):
    """Collects events, and waits for one."""

    def __init__(self) -> None:
        super().__init__(get_logger=lambda: self)
        self.events: list[dict[str, Any]] = []
        self._news = asyncio.Event()

    def log(self, level: int, msg: Any, /, *, exc_info: Any = None, extra: Mapping[str, Any] | None = None) -> None:
        self.events.append({"message": msg, "level": level, "error": exc_info, **(extra or {})})
        self._news.set()

    def named(self, event: str) -> list[dict[str, Any]]:
        return [found for found in self.events if found["event"] == event]

    async def until(self, event: str, *, count: int = 1, seconds: float = 60) -> dict[str, Any]:
        """Wait until there are so many of an event, and return the last."""
        async with asyncio.timeout(seconds):
            while len(self.named(event)) < count:
                self._news.clear()
                await self._news.wait()
        return self.named(event)[-1]


class Wakes:
    """A subscriber's `wake`: counts its calls, and waits for one."""

    def __init__(self) -> None:
        self.count = 0
        self._called = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._called.set()

    async def next(self) -> None:
        """Wait for the next call since the last wait."""
        async with asyncio.timeout(30):
            await self._called.wait()
        self._called.clear()


def calls() -> tuple[list[str], Callable[[str], Callable[[], None]]]:
    """A list, and callbacks that write their name to it."""
    called: list[str] = []
    return called, lambda name: lambda: called.append(name)
