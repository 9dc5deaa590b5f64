"""A real PostgreSQL server that lives as long as a `with` block, or as long as you keep it."""

import asyncio
import atexit
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import URL

from faststream_outbox.embedded.cluster import SUPERUSER
from faststream_outbox.embedded.database import Database
from faststream_outbox.embedded.errors import EmbeddedPostgresError, OldProcessesError, PortTakenError
from faststream_outbox.embedded.home import Home
from faststream_outbox.embedded.port import HOST, ReservedPort
from faststream_outbox.embedded.postmaster import Postmaster, StopMode
from faststream_outbox.embedded.settings import SettingValue, check_settings, server_settings

_PORT_ATTEMPTS = 5
# When the server process was killed, its own children need a moment to notice and end.
_OLD_PROCESSES_PATIENCE = 10.0
_OLD_PROCESSES_POLL = 0.05


class EmbeddedPostgres:
    """Runs PostgreSQL on a free loopback port, in a private directory, behind a random password.

    ```python
    async with EmbeddedPostgres() as server:
        engine = create_async_engine(server.url("asyncpg"))

    with EmbeddedPostgres(fast=True) as server:
        database = server.create_database()
        print(database.dsn)
    ```

    Arguments:
        bin_dir: the `bin` directory of a PostgreSQL installation; by default that of the installed wheel.
        data_dir: keeps the data here, over restarts and for ever; by default the data goes with the server.
        temp_dir: where the private directory is made; by default where Python makes temporary files.
        port: a fixed port; by default a free one.
        fast: gives up durability for speed, which suits tests. Temporary data goes into memory (/dev/shm) where there
            is room, unless `temp_dir` is given. Commits survive a crash of the server, not one of the machine.
        settings: more settings of PostgreSQL, by name; they win over those of `fast`.
        account: who runs the server when Python runs as root; by default `postgres`, else `nobody`.
        start_timeout: how many seconds a start may take; recovery after a crash is part of it.
    """

    def __init__(
        self,
        *,
        bin_dir: str | os.PathLike[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        temp_dir: str | os.PathLike[str] | None = None,
        port: int | None = None,
        fast: bool = False,
        settings: Mapping[str, SettingValue] | None = None,
        account: str | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        self._bin_dir = bin_dir
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._temp_dir = None if temp_dir is None else Path(temp_dir).absolute()
        self._fixed_port = port
        self._fast = fast
        self._settings = dict(settings or {})
        self._account_name = account
        self._start_timeout = start_timeout
        check_settings(self._settings)

        # Re-entrant, so that the clean-up at exit works even if it interrupts a start.
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._home: Home | None = None
        self._port: ReservedPort | None = None
        self._postmaster: Postmaster | None = None

    @property
    def database(self) -> Database:
        """The maintenance database `postgres` of this server."""
        if self._home is None or self._port is None:
            raise EmbeddedPostgresError(
                "This server has no address yet. Use it inside `with EmbeddedPostgres() as server:` or call start()."
            )
        return Database(
            URL.create(
                "postgresql", SUPERUSER, self._home.password, host=HOST, port=self._port.number, database="postgres"
            )
        )

    @property
    def dsn(self) -> str:
        """The connection string in libpq's form: `postgresql://user:password@127.0.0.1:port/postgres`."""
        return self.database.dsn

    def url(self, driver: str = "asyncpg") -> str:
        """Return the SQLAlchemy URL for `driver`: `postgresql+asyncpg://…`."""
        return self.database.url(driver)

    def create_database(self, name: str | None = None) -> Database:
        """Make an empty database on this server; blocks, see `Database.create_database`."""
        return self.database.create_database(name)

    def drop_database(self, database: Database) -> None:
        """Drop a database of this server, whoever is still connected to it; blocks as well."""
        self.database.drop_database(database)

    @property
    def pid(self) -> int | None:
        """The id of the server process, or `None` when it does not run."""
        return self._postmaster.pid if self._postmaster is not None and self._postmaster.running else None

    def log_tail(self) -> str:
        """Return the end of the server's log."""
        return "" if self._home is None else self._home.log.tail()

    def start(self) -> None:
        """Start the server, or start it again after `stop()` with the same address and data."""
        with self._lock:
            if self._home is not None and os.getpid() != self._owner:
                raise EmbeddedPostgresError(
                    "This server belongs to the process that started it, not to a forked child. "
                    "Connect to its dsn, or start another EmbeddedPostgres here."
                )
            if self.pid is not None:
                return
            first = self._home is None
            try:
                if self._home is None:
                    self._owner = os.getpid()
                    atexit.register(self.close)
                    self._home = Home(
                        bin_dir=self._bin_dir,
                        data_dir=self._data_dir,
                        temp_dir=self._temp_dir,
                        account_name=self._account_name,
                        fast=self._fast,
                    )
                self._launch(self._home)
            except BaseException:
                # Also KeyboardInterrupt: a half-started server has nobody else to clean it up.
                if first:
                    self.close()
                raise

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and keep its data; `immediate` is a crash, from which the next start recovers."""
        with self._lock:
            if self._postmaster is None or self._home is None or os.getpid() != self._owner:
                return
            self._postmaster.stop(mode)
            self._postmaster = None
            self._home.watchdog.forget()

    def close(self) -> None:
        """Stop the server and remove everything but a `data_dir` of yours."""
        with self._lock:
            # A forked child has a copy of this object, but the server is not its own.
            if os.getpid() != self._owner:
                return
            try:
                self.stop()
            finally:
                if self._home is not None:
                    self._home.remove()
                    self._home = None
                if self._port is not None:
                    self._port.release()
                    self._port = None
                atexit.unregister(self.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        starting = asyncio.create_task(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread cannot be interrupted, and nobody will call __aexit__.
            await asyncio.gather(starting, return_exceptions=True)
            await asyncio.to_thread(self.close)
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        # Never the connection string: it holds the password.
        where = "" if self._port is None else f" on {HOST}:{self._port.number}"
        return f"<EmbeddedPostgres{where}, {'running' if self.pid is not None else 'stopped'}>"

    def _launch(self, home: Home) -> None:
        # Once clients know the address it must not change any more.
        may_move = self._port is None and self._fixed_port is None
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            if self._port is None:
                # Should this system not let the server listen where we hold the port, the next attempt will do.
                self._port = ReservedPort(self._fixed_port, hold=attempt == 1)
            try:
                self._launch_on(self._port.number, home)
            except PortTakenError:
                if not may_move or attempt == _PORT_ATTEMPTS:
                    raise
                self._port.release()
                self._port = None
            else:
                return

    def _launch_on(self, port: int, home: Home) -> None:
        deadline = time.monotonic() + _OLD_PROCESSES_PATIENCE
        while True:
            try:
                self._launch_once(port, home)
            except OldProcessesError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_OLD_PROCESSES_POLL)
            else:
                return

    def _launch_once(self, port: int, home: Home) -> None:
        self._postmaster = Postmaster(
            home.binaries,
            home.data_dir,
            home.account,
            settings=server_settings(port, fast=self._fast, extra=self._settings),
            log=home.log,
        )
        try:
            home.watchdog.watch(self._postmaster.pid, signal.SIGINT)
            self._postmaster.wait_until_ready(self._start_timeout)
        except BaseException:
            self.stop("immediate")
            raise
