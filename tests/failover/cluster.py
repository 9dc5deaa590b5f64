"""A primary with a synchronous standby, which replaces it: promoted, while the old one is killed or made read-only."""

import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
from sqlalchemy import URL, make_url

from faststream_outbox.embedded import Database, EmbeddedPostgres
from faststream_outbox.embedded.directories import memory_parent
from faststream_outbox.embedded.programs import find_account, find_bin_dir, give_to, process_options

# Debian's, where it is installed; else the one of the wheel.
_DEBIAN: Final = Path("/usr/lib/postgresql/15/bin")
_SETTINGS: Final[dict[str, str | int]] = {"wal_level": "replica", "max_wal_senders": 4}
_SECONDS: Final = 30.0


def find_programs() -> Path:
    """Return where the programs of Postgres are."""
    return find_bin_dir(_DEBIAN if _DEBIAN.is_dir() else None)


class Cluster:
    """Two servers with the same data. Every commit waits until both have it."""

    primary: EmbeddedPostgres
    standby: EmbeddedPostgres

    def __init__(self) -> None:
        self._account = find_account(None)
        self._bin_dir = find_programs()
        self._directory = Path(tempfile.mkdtemp(dir=memory_parent(self._account)))
        give_to(self._account, self._directory)
        self._number = 0
        self._servers: list[EmbeddedPostgres] = []

    def prepare(self) -> None:
        """Start a primary and a standby, whatever the last test left: the server that was promoted is the primary."""
        if not self._servers:
            self.primary = self._start(self._directory / "first")
        elif len(self._servers) == 2 and all(server.pid for server in self._servers) and self._replicates():
            return
        for server in self._servers:
            if server is not self.primary:
                server.close()
        self._servers = [self.primary]
        self._configure(self.primary, synchronous_standby_names="", default_transaction_read_only="off")
        self._number += 1
        copy = self._directory / f"copy{self._number}"
        self._copy(copy)
        self.standby = self._start(copy)
        self._wait(self._replicates)
        self._configure(self.primary, synchronous_standby_names="*")
        self._wait(lambda: self._ask(self.primary, "SELECT sync_state FROM pg_stat_replication") == "sync")

    def _start(self, data_dir: Path) -> EmbeddedPostgres:
        server = EmbeddedPostgres(bin_dir=self._bin_dir, data_dir=data_dir, fast=True, settings=_SETTINGS)
        server.start()
        self._servers.append(server)
        return server

    def _copy(self, to: Path) -> None:
        program = [str(self._bin_dir / "pg_basebackup"), "--pgdata", str(to), "--dbname", self.primary.dsn]
        options = ["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--wal-method=stream"]
        subprocess.run([*program, *options], check=True, capture_output=True, **process_options(self._account))

    def _replicates(self) -> bool:
        return bool(self._ask(self.primary, "SELECT state FROM pg_stat_replication") == "streaming")

    def create_database(self) -> Database:
        """Make a database, on both servers."""
        return self.primary.create_database()

    def url(self, database: Database, driver: str) -> URL:
        """Return the address of a database as an application names it: both servers, and that it wants to write."""
        one = make_url(database.url(driver))
        hosts = tuple(f"127.0.0.1:{make_url(server.dsn).port}" for server in (self.primary, self.standby))
        query = {"host": hosts, "target_session_attrs": "read-write"}
        return URL.create(one.drivername, one.username, one.password, database=one.database, query=query)

    def detach(self) -> None:
        """Let the primary commit alone: from now on the standby gets nothing."""
        self._configure(self.primary, synchronous_standby_names="")
        self._configure(self.standby, primary_conninfo="")
        self._wait(lambda: not self._replicates())

    def kill(self) -> None:
        """Kill the primary as if its machine had lost power."""
        assert self.primary.pid is not None
        main = psutil.Process(self.primary.pid)
        main.suspend()  # it would start processes again
        for process in [*main.children(recursive=True), main]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.primary.stop("immediate")

    def switch_over(self) -> float:
        """Make the primary read-only, with all its connections, and promote the standby."""
        self._configure(self.primary, default_transaction_read_only="on")
        return self.promote()

    def promote(self) -> float:
        """Promote the standby, and swap the names; return the time at which the new primary took writes."""
        assert self._ask(self.standby, "SELECT pg_promote()")
        self.primary, self.standby = self.standby, self.primary
        return time.monotonic()

    def _configure(self, server: EmbeddedPostgres, **settings: str) -> None:
        for name, value in settings.items():
            self._ask(server, f"ALTER SYSTEM SET {name} = '{value}'")
        self._ask(server, "SELECT pg_reload_conf()")
        for name, value in settings.items():
            self._wait(lambda name=name, value=value: self._ask(server, f"SHOW {name}") == value)

    def _ask(self, server: EmbeddedPostgres, statement: str) -> Any:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def _wait(self, condition: Any) -> None:
        deadline = time.monotonic() + _SECONDS
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        """End both servers and remove their data."""
        for server in self._servers:
            server.close()
        shutil.rmtree(self._directory, ignore_errors=True)
