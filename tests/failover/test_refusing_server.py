"""A server that answers and refuses: read-only, in recovery, without a connection left, with a full disk."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import NoRetry
from faststream_outbox.embedded import EmbeddedPostgres
from faststream_outbox.embedded.programs import find_account, give_to, process_options
from faststream_outbox.storage.errors import sqlstate
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.failover.cluster import find_programs
from tests.waiting import until, until_empty

_MEGABYTE: Final = 1024**2
_ROOM: Final = 160 * _MEGABYTE
_SETTINGS: Final[dict[str, str | int]] = {
    "wal_level": "replica",
    "hot_standby": "off",  # while it recovers it refuses connections
    "max_connections": 20,
    "superuser_reserved_connections": 0,
    "min_wal_size": "32MB",
    "max_wal_size": "64MB",
}
EAGER: dict[str, Any] = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2}


class SmallServer:
    """A server with few connections, on a disk of its own where the system permits one."""

    def __init__(self) -> None:
        self._account = find_account(None)
        self._directory = Path(tempfile.mkdtemp())
        give_to(self._account, self._directory)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_ROOM},mode=755", "tmpfs", str(self._directory)]
        mounted = shutil.which("mount") and subprocess.run(mount, check=False, capture_output=True).returncode == 0
        self.has_own_disk = bool(mounted)
        self._data = self._directory / "data"
        self.postgres = EmbeddedPostgres(bin_dir=find_programs(), data_dir=self._data, fast=True, settings=_SETTINGS)
        self.postgres.start()

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def recover(self) -> None:
        """Start again as a standby that takes no connections."""
        self.postgres.stop("immediate")
        signal = self._data / "standby.signal"
        signal.touch()
        give_to(self._account, signal)
        self.postgres.start()

    def promote(self) -> None:
        """End the recovery."""
        command = [str(find_programs() / "pg_ctl"), "promote", "--pgdata", str(self._data)]
        subprocess.run(command, check=True, capture_output=True, **process_options(self._account))

    def fill(self) -> None:
        """Leave no room on the disk."""
        with (self._directory / "full").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        """Remove what filled the disk."""
        (self._directory / "full").unlink()

    def close(self) -> None:
        """End the server and remove its data."""
        self.postgres.close()
        if self.has_own_disk:
            subprocess.run(["umount", str(self._directory)], check=True)
        shutil.rmtree(self._directory)


@pytest.fixture(scope="module")
def server() -> Iterator[SmallServer]:
    server = SmallServer()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
async def outbox(server: SmallServer, driver: str) -> AsyncIterator[PostgresBackend]:
    database = await asyncio.to_thread(server.postgres.create_database)
    engine = create_async_engine(database.url(driver), pool_size=8)
    backend = PostgresBackend(engine)
    await backend.create()
    yield backend
    await engine.dispose()


@asynccontextmanager
async def read_only(server: SmallServer) -> AsyncIterator[None]:
    reload = "SELECT pg_reload_conf()"
    await asyncio.to_thread(server.run, "ALTER SYSTEM SET default_transaction_read_only = on", reload)
    try:
        yield
    finally:
        await asyncio.to_thread(server.run, "ALTER SYSTEM RESET default_transaction_read_only", reload)


@asynccontextmanager
async def in_recovery(server: SmallServer) -> AsyncIterator[None]:
    await asyncio.to_thread(server.recover)
    try:
        yield
    finally:
        await asyncio.to_thread(server.promote)


@asynccontextmanager
async def without_connections(server: SmallServer) -> AsyncIterator[None]:
    """Take every connection that is free, end those of others, and take these as well."""
    mine: list[psycopg.AsyncConnection[Any]] = []

    async def crowd() -> None:
        while True:
            with suppress(psycopg.OperationalError):
                while True:
                    mine.append(await psycopg.AsyncConnection.connect(server.postgres.dsn, autocommit=True))
            pids = [connection.info.backend_pid for connection in mine]
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port > 0 AND pid <> ALL (%s)"
            await mine[0].execute(others, [pids])
            await asyncio.sleep(0.01)

    crowding = asyncio.create_task(crowd())
    try:
        yield
    finally:
        crowding.cancel()
        await asyncio.gather(crowding, return_exceptions=True)
        for connection in mine:
            await connection.close()
    await until(lambda: connected(server), lambda number: number < len(mine) // 2)


async def connected(server: SmallServer) -> int:
    """Count the connections; the server needs a moment to notice that one was closed."""
    with suppress(psycopg.OperationalError):
        async with await psycopg.AsyncConnection.connect(server.postgres.dsn) as connection:
            cursor = await connection.execute("SELECT count(*) FROM pg_stat_activity WHERE client_port > 0")
            [number] = await cursor.fetchone() or [0]
            return int(number)
    return 1000


@asynccontextmanager
async def full_disk(server: SmallServer) -> AsyncIterator[None]:
    await asyncio.to_thread(server.fill)
    try:
        yield
    finally:
        await asyncio.to_thread(server.make_room)


Fault = Callable[[SmallServer], AbstractAsyncContextManager[None]]


@pytest.mark.parametrize(
    ("fault", "logged"),
    [
        pytest.param(read_only, "connect to the primary", id="read-only"),
        pytest.param(in_recovery, "not accepting connections", id="in recovery"),
        pytest.param(without_connections, "too many clients already", id="no connection left"),
    ],
)
async def test_subscribers_wait_for_it(outbox: PostgresBackend, server: SmallServer, fault: Fault, logged: str) -> None:
    """They log why, count no attempt, and go on by themselves."""
    records, handled = Records(), list[int]()
    broker = broker_on(outbox, records)

    @broker.subscriber("q", **EAGER)
    async def handle(number: int) -> None:
        handled.append(number)

    async with started(broker):
        await publish(broker, outbox, 1)
        await until(lambda: handled == [1])
        async with fault(server):
            await until(lambda: [each for each in records.named("claim_failed") if logged in each.getMessage()])
            assert not await broker.ping()
        await until(broker.ping)
        await publish(broker, outbox, 2)
        await until(lambda: 2 in handled)
        await until_empty(outbox)
    assert await outbox.dead_letters() == []


async def test_a_full_disk_delays_what_needs_room(outbox: PostgresBackend, server: SmallServer) -> None:
    """A publish is refused; rows that are there are handled; a dead letter is written when there is room again."""
    if not server.has_own_disk:
        pytest.skip("a disk of its own needs the right to mount one (root)")
    records, handled = Records(), list[int]()
    broker = broker_on(outbox, records)

    @broker.subscriber("q", retry_strategy=NoRetry(), **EAGER)
    async def handle(number: int) -> None:
        handled.append(number)
        if number < 0:
            raise ValueError

    async with started(broker):
        await publish(broker, outbox, 0)
        await until_empty(outbox)
        async with full_disk(server):
            with pytest.raises(DBAPIError) as refused:
                await publish(broker, outbox, *[os.urandom(7000)] * 1000)
            assert sqlstate(refused.value) == "53100"
            await publish(broker, outbox, 1, -1)  # on the pages that are there
            await until(lambda: sorted(handled) == [-1, 0, 1])
            await until(lambda: records.named("settle_failed"))
            assert "No space left" in records.named("settle_failed")[0].getMessage()
            assert "disk is full" in records.named("settle_failed")[0].getMessage()
            await until(outbox.rows, lambda rows: [row.payload for row in rows] == [b"-1"])
        await until_empty(outbox)
        await publish(broker, outbox, 2)
        await until(lambda: 2 in handled)
    assert [letter.payload for letter in await outbox.dead_letters()] == [b"-1"]
    assert sorted(handled) == [-1, 0, 1, 2]
