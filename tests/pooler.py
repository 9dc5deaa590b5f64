"""A pgbouncer in transaction mode, on loopback, between a test and its database."""

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from faststream_outbox.embedded import Database

_NOBODY = 65534


@asynccontextmanager
async def pooling(database: Database) -> AsyncIterator[int]:
    """Start one, and give its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    directory = await asyncio.to_thread(_configure, database, port)
    # It refuses to run as root.
    account: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    process = await asyncio.create_subprocess_exec(
        "pgbouncer", "-q", str(directory / "pgbouncer.ini"), stderr=asyncio.subprocess.DEVNULL, **account
    )
    try:
        async with asyncio.timeout(20):
            while not await _accepts(port):
                assert process.returncode is None, "pgbouncer did not start"
                await asyncio.sleep(0.05)
        yield port
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.to_thread(shutil.rmtree, directory)


def _configure(database: Database, port: int) -> Path:
    address = make_url(database.dsn)
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    (directory / "pgbouncer.ini").write_text(
        f"[databases]\n{address.database} = host={address.host} port={address.port} user={address.username}"
        f" password={address.password}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        "pool_mode = transaction\nignore_startup_parameters = extra_float_digits\n"
    )
    return directory


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
