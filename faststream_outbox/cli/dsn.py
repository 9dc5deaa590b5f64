"""How the database is named: as libpq names it, or as SQLAlchemy does."""

from importlib.util import find_spec
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.passwords import remember

# The faster one first.
_DRIVERS: Final = ("asyncpg", "psycopg")


def database_url(dsn: str) -> URL:
    """Read a DSN, and choose a driver that is installed."""
    try:
        url = make_url(dsn)
    except (ArgumentError, ValueError):
        # What is written there may be a password.
        raise UsageError("dsn is no URL: postgresql://user@host:5432/database.") from None
    remember(None if url.password is None else str(url.password))
    dialect, _, driver = url.drivername.partition("+")
    if dialect not in ("postgresql", "postgres") or driver not in ("", *_DRIVERS):
        raise UsageError(
            f"dsn begins with {url.drivername}://, and an outbox is in Postgres: postgresql://…, "
            "postgresql+asyncpg://… or postgresql+psycopg://…."
        )
    url = url.set(drivername=f"postgresql+{_installed(driver)}")
    if url.drivername == "postgresql+asyncpg":
        # asyncpg takes libpq's sslmode under another name.
        url = url.set(query={"ssl" if name == "sslmode" else name: value for name, value in url.query.items()})
    return url


def _installed(wanted: str) -> str:
    drivers = [wanted] if wanted else _DRIVERS
    for driver in drivers:
        if find_spec(driver):
            return driver
    names, extra = " or ".join(drivers), drivers[0]
    raise ProgramError(f"Postgres is reached through {names}: pip install 'faststream-outbox[{extra}]'.")
