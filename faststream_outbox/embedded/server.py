"""A real PostgreSQL server that runs as long as a `with` block, or until it is closed."""

import asyncio
import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, Self

from sqlalchemy import URL

from faststream_outbox.embedded.database import Database
from faststream_outbox.embedded.directories import ServerFiles, in_use
from faststream_outbox.embedded.errors import EmbeddedPostgresError, PortTakenError, ServerStartError
from faststream_outbox.embedded.programs import SUPERUSER, StrPath

_HOST = "127.0.0.1"
# These settings make a server survive a power cut, and slow; data that a test throws away needs none of them.
# synchronous_commit stays on: with fsync off it costs nothing, and a server that is killed still keeps its commits.
_FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    # No replica reads this server, so the log can leave out what only replicas need.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # No checkpoint in the middle of a test run.
    "checkpoint_timeout": "1h",
    # Compiling costs more than it saves on the small tables of a test.
    "jit": "off",
}
_OURS = frozenset({"port", "listen_addresses", "unix_socket_directories", "data_directory", "logging_collector"})
# Recovery after a crash is part of a start.
_START_TIMEOUT = 60.0
_READY_POLL = 0.005
_RETRY_POLL = 0.05
_STATUS_LINE = 7
# A standby answers too; its data directory says what it is.
_ANSWERS = ("ready", "standby")
# A fast shutdown writes a checkpoint, which a slow disk may delay; the others have nothing to wait for.
_STOP_STEPS = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, None))


class EmbeddedPostgres:
    """Runs PostgreSQL on a free loopback port, in a private directory, behind a random password.

    Args:
        bin_dir: The `bin` directory of a PostgreSQL installation; by default that of the installed wheel.
        data_dir: Keeps the data here, also over restarts; by default the data is removed with the server.
        temp_dir: Where the private directory is made; by default where Python makes temporary files.
        port: A fixed port; by default a free one.
        fast: Gives up durability for speed, which suits tests. Temporary data goes into memory (/dev/shm) where there
            is room, unless `temp_dir` is given. Commits survive a crash of the server, not one of the machine.
        settings: More settings of PostgreSQL, by name; they win over those of `fast`.
        account: The account that runs the server when Python runs as root; by default `postgres`, else `nobody`.

    Example:
        async with EmbeddedPostgres() as server:
            engine = create_async_engine(server.url("asyncpg"))

        with EmbeddedPostgres(fast=True) as server:
            database = server.create_database()
            print(database.dsn)

    """

    def __init__(
        self,
        *,
        bin_dir: StrPath | None = None,
        data_dir: StrPath | None = None,
        temp_dir: StrPath | None = None,
        port: int | None = None,
        fast: bool = False,
        settings: Mapping[str, str | int | float | bool] | None = None,
        account: str | None = None,
    ) -> None:
        self._make_files = partial(
            ServerFiles,
            bin_dir=bin_dir,
            data_dir=None if data_dir is None else Path(data_dir).absolute(),
            temp_dir=None if temp_dir is None else Path(temp_dir).absolute(),
            account_name=account,
            fast=fast,
        )
        self._fixed_port = port
        self._settings = (_FAST if fast else {}) | {name: str(value) for name, value in (settings or {}).items()}
        taken = sorted(_OURS & {name.lower() for name in self._settings})
        if taken:
            advice = "EmbeddedPostgres sets them itself. For the port and the data directory give port= and data_dir="
            raise ValueError(f"settings= must not contain {', '.join(taken)}: {advice}.")
        # Re-entrant, so that the clean-up at exit works even if it interrupts a start.
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._port = 0
        self._port_holder: socket.socket | None = None
        self._files: ServerFiles | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def database(self) -> Database:
        """The maintenance database `postgres` of this server."""
        if self._files is None:
            raise EmbeddedPostgresError("This server has no address yet: use it in a `with` block, or call start().")
        return Database(URL.create("postgresql", SUPERUSER, self._files.password, _HOST, self._port, "postgres"))

    @property
    def dsn(self) -> str:
        """The connection string in libpq's form: `postgresql://user:password@127.0.0.1:port/postgres`."""
        return self.database.dsn

    def url(self, driver: str = "asyncpg") -> str:
        """Return the SQLAlchemy URL: `postgresql+asyncpg://…`.

        Args:
            driver: The driver in it, `"asyncpg"` or `"psycopg"`.

        """
        return self.database.url(driver)

    def create_database(self, name: str | None = None) -> Database:
        """Create an empty database on this server; blocks, see `Database.create_database`.

        Args:
            name: Its name; by default a random one.

        """
        return self.database.create_database(name)

    def drop_database(self, database: Database) -> None:
        """Drop a database of this server, also while clients are connected to it; blocks as well.

        Args:
            database: The database to drop.

        """
        self.database.drop_database(database)

    @property
    def pid(self) -> int | None:
        """The id of the server process, or `None` when it does not run."""
        process = self._process
        if process is None or process.poll() is None:
            return None if process is None else process.pid
        if self._files is not None:
            self._files.watchdog.forget(process.pid)
        return None

    def log_tail(self) -> str:
        """Return the end of the server's log."""
        return "" if self._files is None else self._files.log_tail()

    def start(self) -> None:
        """Start the server, or start it again after `stop()` with the same address and data."""
        with self._lock:
            if self._files is not None and os.getpid() != self._owner:
                raise EmbeddedPostgresError(
                    "This server belongs to the process that started it, not to a forked child. "
                    "Connect to its dsn, or start another EmbeddedPostgres here."
                )
            if self.pid is not None:
                return
            first = self._files is None
            try:
                if self._files is None:
                    self._owner = os.getpid()
                    atexit.register(self.close)
                    self._port, self._port_holder = _reserve_port(self._fixed_port)
                    self._files = self._make_files()
                self._launch(self._files)
            except BaseException:
                # Also KeyboardInterrupt: without `__enter__` no `__exit__` stops the server.
                self.stop("immediate")
                if first:
                    self.close()
                raise

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and keep its data.

        Args:
            mode: `"fast"` writes everything to the disk; `"immediate"` is a crash, from which the next start recovers.

        """
        with self._lock:
            # A forked child has a copy of this object, but the server belongs to its parent.
            if self._process is None or self._files is None or os.getpid() != self._owner:
                return
            for number, seconds in _STOP_STEPS[0 if mode == "fast" else 1 :]:
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(seconds)
                    break
            self._files.watchdog.forget(self._process.pid)
            self._process = None

    def close(self) -> None:
        """Stop the server and remove everything except the directory given as `data_dir`."""
        with self._lock:
            if os.getpid() != self._owner:
                return
            try:
                self.stop()
            finally:
                if self._files is not None:
                    self._files.close()
                    self._files = None
                if self._port_holder is not None:
                    self._port_holder.close()
                    self._port_holder = None
                atexit.unregister(self.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        starting = asyncio.create_task(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread cannot be interrupted, and `__aexit__` will not be called.
            await asyncio.gather(starting, return_exceptions=True)
            await asyncio.to_thread(self.close)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        # Without the connection string, which contains the password.
        return f"<EmbeddedPostgres {'stopped' if self.pid is None else f'on {_HOST}:{self._port}'}>"

    def _launch(self, files: ServerFiles) -> None:
        # TCP on the loopback only: the path of a socket file is limited in length, and so could not be private.
        settings = self._settings | {"port": str(self._port), "listen_addresses": _HOST, "unix_socket_directories": ""}
        arguments = ["-D", str(files.data_dir), *(f"--{name}={value}" for name, value in settings.items())]
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            files.log.truncate(0)
            self._process = files.programs.start("postgres", *arguments, stdout=files.log, stderr=files.log)
            files.watchdog.watch(self._process.pid, signal.SIGINT)
            while (code := self._process.poll()) is None:
                if _is_ready(files.data_dir, self._process.pid):
                    return
                if time.monotonic() > deadline:
                    problem = f"PostgreSQL was not ready after {_START_TIMEOUT:g} seconds"
                    raise ServerStartError(f"{problem}. The end of its log:\n{files.log_tail()}")
                time.sleep(_READY_POLL)
            tail = files.log_tail()
            if 'lock file "postmaster.pid" already exists' in tail:
                raise in_use(files.data_dir)
            # After the server process was killed, its children need a moment to notice that and end.
            if "pre-existing shared memory block" not in tail or time.monotonic() > deadline:
                raise ServerStartError(f"PostgreSQL did not start (exit code {code}). The end of its log:\n{tail}")
            time.sleep(_RETRY_POLL)


def _reserve_port(port: int | None) -> tuple[int, socket.socket]:
    """Return a port, and the socket that reserves it while the server does not run.

    Otherwise the system could give the port to an outgoing connection of any program, even of a client that retries:
    it would be connected to itself. Only Linux lets a server listen where another socket is bound.
    """
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_HOST, port or 0))
        return int(holder.getsockname()[1]), holder
    except OSError as error:
        holder.close()
        raise PortTakenError(f"port={port} cannot be used: {error.strerror}. Choose another or none.") from error
    finally:
        if sys.platform != "linux":
            holder.close()


def _is_ready(data_dir: Path, pid: int) -> bool:
    try:
        lines = (data_dir / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    # A server that crashed leaves its file behind, with its own id in the first line.
    return len(lines) > _STATUS_LINE and lines[0] == str(pid) and lines[_STATUS_LINE].strip() in _ANSWERS
