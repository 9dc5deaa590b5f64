"""LISTEN and NOTIFY: listening has a connection outside the pool, notifying borrows one from the pool."""

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import Pool, PoolProxiedConnection, QueuePool
from sqlalchemy.util import greenlet_spawn

from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.errors import ReadOnlyServerError, sqlstate
from faststream_outbox.storage.listening import Listening
from faststream_outbox.storage.nodes import Look, Node, node_name
from faststream_outbox.storage.operating.control import Control
from faststream_outbox.storage.postgres.drivers import (
    INSUFFICIENT_PRIVILEGE,
    AsyncpgExecutor,
    PsycopgExecutor,
    Records,
    discard_pooled,
    run_on,
)
from faststream_outbox.storage.postgres.statements.control import ControlStatements
from faststream_outbox.storage.postgres.statements.nodes import LOCKED_NODES
from faststream_outbox.storage.postgres.statements.statement import Statement
from faststream_outbox.storage.schema.tables import quoted_name

_BACKEND_PID: Final = Statement("SELECT pg_backend_pid()")
# Postgres keeps one of equal notifications in a transaction.
NOTIFY: Final = Statement(
    "SELECT pg_notify(:channel::text, n.payload)::text FROM unnest(:payloads::text[]) AS n(payload)"
)
# A primary that was replaced and set to read-only still passes notifications on, and none of them is of a new row.
_TEST: Final = Statement(
    "SELECT pg_notify(:channel::text, :payload::text)::text, current_setting('transaction_read_only') = 'on'"
)

# Shared: the connection that this one replaces may still have it, if the server does not know yet that it is lost.
# The name of the connection shows people which node this is, behind the name that the application gave it.
_LOCK: Final = Statement("""SELECT pg_try_advisory_lock_shared(:lock::bigint),
  set_config('application_name', concat_ws(' ', left(coalesce(nullif(current_setting('application_name'), ''),
    'faststream-outbox'), 62 - length(:name::text)), :name::text), false)""")
_LOOK_TEXT: Final = f"SELECT date_part('epoch', now()), ARRAY({LOCKED_NODES})"
_LOOK: Final = Statement(_LOOK_TEXT)
# Postgres cuts longer names of connections; the one that the application gave needs room too.
_LONGEST_NAME: Final = 45

# Called with a notification's channel and payload.
_OnNotification = Callable[[str, str], None]

# The control table cannot be read: no right, no such table, no such column.
_NO_CONTROL: Final = frozenset({INSUFFICIENT_PRIVILEGE, "42P01", "42703"})

# How long closing a connection waits for its running statement.
_CLOSE_TIMEOUT: Final = 1.0


class Notifications:
    """The notifications of one table."""

    def __init__(
        self, channel: str, unserved: Statement, control: Control, control_statements: ControlStatements | None
    ) -> None:
        self.channel = channel
        self._looks = _Looks(unserved, control, control_statements)
        # Unique, and always the same: behind a pooler a server connection may listen to it after we have closed.
        self._test_channel = f"outbox_test_{uuid4().hex}"

    async def send(self, engine: AsyncEngine, payloads: Sequence[str]) -> None:
        """Notify all listeners of the table, in one statement."""
        await self.run(engine, NOTIFY, channel=self.channel, payloads=payloads)

    @staticmethod
    async def run(engine: AsyncEngine, statement: Statement, /, **values: Any) -> Records:
        """Run one statement on a connection from the pool, outside a transaction."""
        return await _run(engine, statement, **values)

    @asynccontextmanager
    async def listen(self, engine: AsyncEngine, on_queue: Callable[[str], None]) -> AsyncIterator[Listening]:
        """Open a connection as the engine would, and listen on it."""
        lent = await _borrow(engine)
        listener: _Listener = (_AsyncpgListener if engine.dialect.driver == "asyncpg" else _PsycopgListener)(lent)
        lent.detach()
        listening = _PostgresListening(engine, listener, self.channel, self._test_channel, self._looks)

        def receive(channel: str, payload: str) -> None:
            if channel == self.channel:
                on_queue(payload)
            else:
                listening.receive_test(payload)

        try:
            await listener.open([self.channel, self._test_channel], receive)
            await listening.detect_pooler()
            yield listening
        finally:
            await listener.close()


class _Looks:
    """What a listening connection reads now and then."""

    def __init__(self, unserved: Statement, control: Control, statements: ControlStatements | None) -> None:
        self.unserved = unserved
        self.control = control
        self.with_control = None if statements is None else Statement(f"{_LOOK_TEXT},\n  {statements.notes}")


class _Listener(ABC):
    """A driver's connection that listens, and runs a statement now and then."""

    _executor_type: type[AsyncpgExecutor | PsycopgExecutor]

    def __init__(self, lent: PoolProxiedConnection) -> None:
        self.lent = lent
        self._connection: Any = lent.driver_connection
        self.executor = self._executor_type(self._connection)
        self._turn = asyncio.Lock()
        self.lost = asyncio.Event()

    @abstractmethod
    async def open(self, channels: Sequence[str], receive: _OnNotification) -> None:
        """Begin to listen."""

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Run a statement after those before it."""
        async with self._turn:
            return await self._fetch(statement, **values)

    async def _fetch(self, statement: Statement, /, **values: Any) -> Records:
        return await self.executor.fetch(statement, **values)

    @abstractmethod
    async def close(self) -> None:
        """Close the connection without waiting for the server, which may be unreachable."""


class _AsyncpgListener(_Listener):
    _executor_type = AsyncpgExecutor

    async def open(self, channels: Sequence[str], receive: _OnNotification) -> None:
        def notified(_connection: Any, _pid: int, channel: str, payload: str) -> None:
            receive(channel, payload)

        self._connection.add_termination_listener(lambda _connection: self.lost.set())
        for channel in channels:
            await self._connection.add_listener(channel, notified)
        if self._connection.is_closed():
            self.lost.set()

    async def close(self) -> None:
        self._connection.terminate()


class _PsycopgListener(_Listener):
    """Reads notifications between statements: during psycopg's `notifies()` the connection could run none."""

    _executor_type = PsycopgExecutor
    _receive: _OnNotification
    # The file descriptor that we watch. Not while a statement runs: psycopg itself watches it then.
    _watched: int | None = None
    _closing = False

    async def open(self, channels: Sequence[str], receive: _OnNotification) -> None:
        self._receive = receive
        # For notifications that come with the answer to a statement.
        self._connection.add_notify_handler(lambda notification: receive(notification.channel, notification.payload))
        await self._connection.set_autocommit(True)
        for channel in channels:
            await self._connection.execute(f"LISTEN {quoted_name(channel)}")
        self._watch()

    async def _fetch(self, statement: Statement, /, **values: Any) -> Records:
        self._unwatch()
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

    def _unwatch(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    def _read(self) -> None:
        import psycopg  # noqa: PLC0415 - an optional dependency, here by the engine's own choice

        libpq, encoding = self._connection.pgconn, self._connection.info.encoding
        try:
            libpq.consume_input()
            while (notification := libpq.notifies()) is not None:
                self._receive(notification.relname.decode(encoding), notification.extra.decode(encoding))
        except psycopg.Error:
            self._unwatch()
            self.lost.set()

    async def close(self) -> None:
        self._closing = True
        self._unwatch()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await self._turn.acquire()
        finally:
            await self._connection.close()


class _PostgresListening(Listening):
    def __init__(
        self, engine: AsyncEngine, listener: _Listener, channel: str, test_channel: str, looks: "_Looks"
    ) -> None:
        self._engine = engine
        self._looks = looks
        self._reads_control = looks.with_control is not None
        self._listener = listener
        self._channel = channel
        self._test_channel = test_channel
        self._tests: dict[str, asyncio.Event] = {}
        self._direct = False
        self._locks_node = False
        self._relies_on_leases = False

    async def detect_pooler(self) -> None:
        """Find out whether a pooler is in between: it announces a process id of its own, not that of the server."""
        [[pid]] = await self._listener.fetch(_BACKEND_PID)
        self._direct = pid == self._listener.executor.connected_to()

    async def notify(self, queues: Iterable[str]) -> None:
        await self._listener.fetch(NOTIFY, channel=self._channel, payloads=list(queues))

    async def unserved(self, known: Collection[str]) -> dict[str, int]:
        records = await self._listener.fetch(self._looks.unserved, known=list(known))
        return dict(map(tuple, records))

    async def look(self, node: Node) -> Look | None:
        if not self._direct or self._relies_on_leases:
            return None
        try:
            return await self._look(node)
        except Exception as error:
            if sqlstate(error) != INSUFFICIENT_PRIVILEGE:
                raise
            self._rely_on_leases(node)
            return None

    async def _look(self, node: Node) -> Look | None:
        locks_node, locking_at = self._locks_node, lease_now()
        if not locks_node:
            [[locks_node, _]] = await self._listener.fetch(_LOCK, lock=node.lock, name=_describe(node))
        sent = lease_now()
        database_time, nodes = await self._read_locks()
        look = Look(frozenset(map(node_name, nodes)), database_time, sent, lease_now())
        if not locks_node:
            return look
        if node.name not in look.names:
            self._rely_on_leases(node)  # other nodes do not see it either, and this one does not see theirs
            return None
        if not self._locks_node:
            self._locks_node = True
            node.note_locked(sent=locking_at, received=look.received)
        node.note_seen(sent)
        return look

    async def _read_locks(self) -> tuple[float, list[int]]:
        """Read the locks of all nodes and, in the same statement, which queues are paused."""
        with_control = self._looks.with_control
        if with_control is not None and self._reads_control:
            try:
                [[database_time, nodes, notes]] = await self._listener.fetch(with_control)
            except Exception as error:
                if sqlstate(error) not in _NO_CONTROL:
                    raise
                # Recovery depends on the locks, and not on this table: `ControlReader` reads it and reports the error.
                self._reads_control = False
            else:
                self._looks.control.note(notes, looked=True)
                return database_time, nodes
        [[database_time, nodes]] = await self._listener.fetch(_LOOK)
        return database_time, nodes

    def _rely_on_leases(self, node: Node) -> None:
        """Look no more on this connection: leases alone decide, as behind a pooler."""
        self._relies_on_leases = True
        node.note_lost()

    async def wait_lost(self) -> None:
        await self._listener.lost.wait()

    async def test(self) -> None:
        name, received = uuid4().hex, asyncio.Event()
        self._tests[name] = received
        try:
            if self._direct:
                [[_, read_only]] = await self._listener.fetch(_TEST, channel=self._test_channel, payload=name)
            else:
                # Over another connection: a pooler may give the listening server connection to others. Then we receive
                # nothing of other publishers, but would still receive what we send on this connection.
                [[_, read_only]] = await _run(self._engine, _TEST, channel=self._test_channel, payload=name)
            if read_only:
                discard_pooled(self._engine.pool, self._listener.lent)
                raise ReadOnlyServerError
            await received.wait()
        finally:
            del self._tests[name]

    def receive_test(self, name: str) -> None:
        if name in self._tests:
            self._tests[name].set()

    def can_test(self) -> bool:
        return self._direct or not _exhausted(self._engine.pool)


def _describe(node: Node) -> str:
    """Return what people read in `pg_stat_activity`: which node this is, and where it runs."""
    process = f":{os.getpid()}"
    host = socket.gethostname().encode("ascii", "replace").decode()
    return f"{node.name} {host}"[: _LONGEST_NAME - len(process)] + process


async def _borrow(engine: AsyncEngine) -> PoolProxiedConnection:
    """Take a connection that is never returned to the pool: the pool opens another one when it needs it."""
    # To wait until handlers return one could take longer than other nodes wait for the lock of this one.
    lend = engine.pool.recreate().connect if _exhausted(engine.pool) else engine.sync_engine.raw_connection
    return await greenlet_spawn(lend)


def _exhausted(pool: Pool) -> bool:
    overflow: int = getattr(pool, "_max_overflow", -1)  # -1 means no limit; there is no public name for it
    if not isinstance(pool, QueuePool) or pool.size() == 0 or overflow < 0:
        return False
    return pool.checkedout() >= pool.size() + overflow


async def _run(engine: AsyncEngine, statement: Statement, /, **values: Any) -> Records:
    async with engine.connect() as connection:
        try:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            return await connection.run_sync(run_on, statement, **values)
        except BaseException:
            # Its state is unknown: the pool must not reuse it.
            await connection.invalidate()
            raise
