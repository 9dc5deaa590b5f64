"""LISTEN, and NOTIFY beside it, on a connection that belongs to no pool; NOTIFY alone on one that the pool lends."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import Pool, QueuePool

from faststream_outbox.storage.contract import Listening
from faststream_outbox.storage.postgres.drivers import AsyncpgExecutor, PsycopgExecutor, Records, run_on
from faststream_outbox.storage.postgres.statements.statement import Statement
from faststream_outbox.storage.schema.tables import quoted_name

_BACKEND_PID: Final = Statement("SELECT pg_backend_pid()")
# Postgres keeps one of equal notifications in a transaction.
NOTIFY: Final = Statement(
    "SELECT pg_notify(:channel::text, n.payload)::text FROM unnest(:payloads::text[]) AS n(payload)"
)

# Called with a notification's channel and payload.
_Hear = Callable[[str, str], None]

# How long a statement on a connection that is being closed may take to let go of it.
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
        listening = _PostgresListening(engine, ear, self.channel, self._test_channel)

        def hear(channel: str, payload: str) -> None:
            if channel == self.channel:
                on_queue(payload)
            else:
                listening.hear_test(payload)

        try:
            await ear.open([self.channel, self._test_channel], hear)
            await listening.look_for_poolers()
            yield listening
        finally:
            await ear.close()


class _Ear(ABC):
    """A driver's connection that listens, and runs a statement now and then."""

    def __init__(self, connection: Any, executor: AsyncpgExecutor | PsycopgExecutor) -> None:
        self._connection = connection
        self._executor = executor
        self._turn = asyncio.Lock()
        self.lost = asyncio.Event()

    @abstractmethod
    async def open(self, channels: Sequence[str], hear: _Hear) -> None:
        """Begin to listen."""

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement when those before it are done."""
        async with self._turn:
            return await self._fetch(statement, **values)

    async def _fetch(self, statement: Statement, /, **values: Any) -> Records:
        return await self._executor.fetch(statement, **values)

    def connected_to(self) -> int:
        """Tell which server process the connection was told it talks to."""
        return self._executor.connected_to()

    @abstractmethod
    async def close(self) -> None:
        """Close the connection without waiting for the server, which may be out of reach."""


class _AsyncpgEar(_Ear):
    def __init__(self, connection: Any) -> None:
        super().__init__(connection, AsyncpgExecutor(connection))

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
    """Reads by itself between statements: psycopg's `notifies()` would keep the connection from running any."""

    _hear: _Hear
    # Whose readiness the event loop tells us, and nobody else: psycopg asks for it too, while a statement runs.
    _watched: int | None = None
    _closing = False

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, PsycopgExecutor(connection))

    async def open(self, channels: Sequence[str], hear: _Hear) -> None:
        self._hear = hear
        # For those that come with the answer to a statement.
        self._connection.add_notify_handler(lambda notification: hear(notification.channel, notification.payload))
        await self._connection.set_autocommit(True)
        for channel in channels:
            await self._connection.execute(f"LISTEN {quoted_name(channel)}")
        self._watch()

    async def _fetch(self, statement: Statement, /, **values: Any) -> Records:
        self._look_away()
        try:
            return await super()._fetch(statement, **values)
        finally:
            self._watch()

    def _watch(self) -> None:
        if self._connection.closed:
            self.lost.set()
        elif not self._closing:
            self._watched = self._connection.fileno()
            asyncio.get_running_loop().add_reader(self._watched, self._read)

    def _look_away(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    def _read(self) -> None:
        import psycopg  # noqa: PLC0415 - an optional dependency, here by the engine's own choice

        libpq, encoding = self._connection.pgconn, self._connection.info.encoding
        try:
            libpq.consume_input()
            while (notification := libpq.notifies()) is not None:
                self._hear(notification.relname.decode(encoding), notification.extra.decode(encoding))
        except psycopg.Error:
            self._look_away()
            self.lost.set()

    async def close(self) -> None:
        self._closing = True
        self._look_away()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LET_GO):
                    await self._turn.acquire()
        finally:
            await self._connection.close()


class _PostgresListening(Listening):
    def __init__(self, engine: AsyncEngine, ear: _Ear, channel: str, test_channel: str) -> None:
        self._engine = engine
        self._ear = ear
        self._channel = channel
        self._test_channel = test_channel
        self._tests: dict[str, asyncio.Event] = {}
        self._direct = False

    async def look_for_poolers(self) -> None:
        """Find out whether there is one in between: it answers for itself when it is asked whom one talks to."""
        [[pid]] = await self._ear.fetch(_BACKEND_PID)
        self._direct = pid == self._ear.connected_to()

    async def notify(self, queues: Iterable[str]) -> None:
        await self._ear.fetch(NOTIFY, channel=self._channel, payloads=list(queues))

    async def wait_lost(self) -> None:
        await self._ear.lost.wait()

    async def test(self) -> None:
        name, heard = uuid4().hex, asyncio.Event()
        self._tests[name] = heard
        try:
            if self._direct:
                await self._ear.fetch(NOTIFY, channel=self._test_channel, payloads=[name])
            else:
                # Over another connection: a pooler gives the listening one's server to others, and it hears nothing
                # then; but a test of its own it would hear.
                await _send(self._engine, self._test_channel, [name])
            await heard.wait()
        finally:
            del self._tests[name]

    def hear_test(self, name: str) -> None:
        if name in self._tests:
            self._tests[name].set()

    def can_test(self) -> bool:
        return self._direct or not _exhausted(self._engine.pool)


def _exhausted(pool: Pool) -> bool:
    overflow: int = getattr(pool, "_max_overflow", -1)  # -1 is without limit, and there is no public name for it
    if not isinstance(pool, QueuePool) or pool.size() == 0 or overflow < 0:
        return False
    return pool.checkedout() >= pool.size() + overflow


async def _send(engine: AsyncEngine, channel: str, payloads: Sequence[str]) -> None:
    async with engine.connect() as connection:
        try:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.run_sync(run_on, NOTIFY, channel=channel, payloads=payloads)
        except BaseException:
            # Whatever state it is in, the pool must not hand it to anybody.
            await connection.invalidate()
            raise
