"""NOTIFY and LISTEN: sent on a connection that the pool lends for a moment, heard on one that belongs to no pool."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import Pool, QueuePool

from faststream_outbox.storage.base import Listening
from faststream_outbox.storage.drivers import run_on
from faststream_outbox.storage.schema import quoted_name
from faststream_outbox.storage.statements import NOTIFY

# Called with a notification's channel and payload.
_Hear = Callable[[str, str], None]

# How long the reader of a connection that is being closed may take to let go of it.
_LET_GO: Final = 1.0


class Notifications:
    """The notifications of one table."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        # Nobody else's, and one for good: behind a pooler, what listens to it may never be told to stop.
        self._test_channel = f"outbox_test_{uuid4().hex}"

    async def send(self, engine: AsyncEngine, payloads: Sequence[str]) -> None:
        """Notify everybody who listens to the table, in one statement."""
        await _send(engine, self.channel, payloads)

    @asynccontextmanager
    async def listen(self, engine: AsyncEngine, on_queue: Callable[[str], None]) -> AsyncIterator[Listening]:
        """Open a connection with all that the engine connects with, and listen on it."""
        # Taken from the pool and never given back: the pool makes another one when it needs it.
        lent = await engine.raw_connection()
        ear: _Ear = (_AsyncpgEar if engine.dialect.driver == "asyncpg" else _PsycopgEar)(lent.driver_connection)
        lent.detach()
        listening = _PostgresListening(engine, ear, self._test_channel)

        def hear(channel: str, payload: str) -> None:
            if channel == self.channel:
                on_queue(payload)
            else:
                listening.hear_test(payload)

        try:
            await ear.open([self.channel, self._test_channel], hear)
            yield listening
        finally:
            await ear.close()


class _Ear(ABC):
    """A driver's connection that listens."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.lost = asyncio.Event()

    @abstractmethod
    async def open(self, channels: Sequence[str], hear: _Hear) -> None:
        """Begin to listen."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection without waiting for the server, which may be out of reach."""


class _AsyncpgEar(_Ear):
    async def open(self, channels: Sequence[str], hear: _Hear) -> None:
        def notified(_connection: Any, _pid: int, channel: str, payload: str) -> None:
            hear(channel, payload)

        self._connection.add_termination_listener(lambda _connection: self.lost.set())
        for channel in channels:
            await self._connection.add_listener(channel, notified)
        if self._connection.is_closed():
            self.lost.set()

    async def close(self) -> None:
        self._connection.terminate()


class _PsycopgEar(_Ear):
    _reader: asyncio.Task[None] | None = None

    async def open(self, channels: Sequence[str], hear: _Hear) -> None:
        await self._connection.set_autocommit(True)
        for channel in channels:
            await self._connection.execute(f"LISTEN {quoted_name(channel)}")
        self._reader = asyncio.create_task(self._read(hear), name="LISTEN")

    async def _read(self, hear: _Hear) -> None:
        import psycopg  # noqa: PLC0415 - an optional dependency, here by the engine's own choice

        try:
            async for notification in self._connection.notifies():
                hear(notification.channel, notification.payload)
        except (psycopg.Error, OSError):
            pass  # `lost` says it
        finally:
            self.lost.set()

    async def close(self) -> None:
        try:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.wait([self._reader], timeout=_LET_GO)
        finally:
            await self._connection.close()


class _PostgresListening(Listening):
    def __init__(self, engine: AsyncEngine, ear: _Ear, test_channel: str) -> None:
        self._engine = engine
        self._ear = ear
        self._test_channel = test_channel
        self._tests: dict[str, asyncio.Event] = {}

    async def wait_lost(self) -> None:
        await self._ear.lost.wait()

    async def test(self) -> None:
        name, heard = uuid4().hex, asyncio.Event()
        self._tests[name] = heard
        try:
            # Over another connection: a pooler gives the listening one's server away, and would answer it itself.
            await _send(self._engine, self._test_channel, [name])
            await heard.wait()
        finally:
            del self._tests[name]

    def hear_test(self, name: str) -> None:
        if name in self._tests:
            self._tests[name].set()

    def can_test(self) -> bool:
        return not _exhausted(self._engine.pool)


def _exhausted(pool: Pool) -> bool:
    overflow: int = getattr(pool, "_max_overflow", -1)  # -1 is without limit, and there is no public name for it
    if not isinstance(pool, QueuePool) or pool.size() == 0 or overflow < 0:
        return False
    return pool.checkedout() >= pool.size() + overflow


async def _send(engine: AsyncEngine, channel: str, payloads: Sequence[str]) -> None:
    async with engine.connect() as connection:
        try:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.run_sync(run_on, NOTIFY, channel, payloads)
        except BaseException:
            # Whatever state it is in, the pool must not hand it to anybody.
            await connection.invalidate()
            raise
