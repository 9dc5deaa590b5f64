"""What a run was made on: the machine, the versions, the server's settings."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Final

import asyncpg

from faststream_outbox.embedded import Database

PACKAGES: Final = ("faststream-outbox", "SQLAlchemy", "asyncpg", "psycopg")
SETTINGS: Final = (
    *("shared_buffers", "max_wal_size", "checkpoint_timeout", "fsync", "synchronous_commit", "full_page_writes"),
    *("data_checksums", "wal_level", "autovacuum", "autovacuum_naptime"),
)


async def facts(database: Database) -> dict[str, str]:
    """Collect what a reader needs to judge a run, or to repeat it."""
    connection = await asyncpg.connect(database.dsn)
    try:
        server = await connection.fetchval("SHOW server_version")
        settings = [f"{name} = {await connection.fetchval(f'SHOW {name}')}" for name in SETTINGS]
    finally:
        await connection.close()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = f"{platform.system()} {platform.release()}"
    return {
        "machine": f"{os.cpu_count()} cores ({processor()}), {memory:.0f} GiB, {kernel}",
        "load when it began": f"{os.getloadavg()[0]:.1f}",
        "versions": ", ".join(
            [
                f"Postgres {server.split()[0]}",
                f"Python {platform.python_version()}",
                *(f"{package} {version(package)}" for package in PACKAGES),
            ]
        ),
        "settings": ", ".join(settings),
    }


def processor() -> str:
    """Return the name of the processor, if the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
