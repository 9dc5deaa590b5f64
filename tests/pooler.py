"""A pgbouncer on loopback between a test and its database."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from faststream_outbox.embedded import Database
from tests.servers.process import free_port, running
from tests.servers.server import Installable

_NOBODY = 65534


class PgBouncer(Installable):
    name = "pgbouncer"
    how = "apt-get install pgbouncer"

    @classmethod
    def lacks(cls) -> str | None:
        return None if shutil.which("pgbouncer") else "it is not installed"


@asynccontextmanager
async def pooling(database: Database, *, mode: str = "transaction") -> AsyncIterator[int]:
    """Start one, and give its port."""
    port = free_port()
    directory = await asyncio.to_thread(_configure, database, port, mode)
    # It refuses to run as root.
    account: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    try:
        async with running(port, "pgbouncer", "-q", str(directory / "pgbouncer.ini"), log=directory / "log", **account):
            yield port
    finally:
        await asyncio.to_thread(shutil.rmtree, directory)


def _configure(database: Database, port: int, mode: str) -> Path:
    address = make_url(database.dsn)
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    (directory / "pgbouncer.ini").write_text(
        f"[databases]\n{address.database} = host={address.host} port={address.port} user={address.username}"
        f" password={address.password}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        f"pool_mode = {mode}\nignore_startup_parameters = extra_float_digits\n"
    )
    return directory
