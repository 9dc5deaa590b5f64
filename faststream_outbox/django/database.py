"""The database of Django's settings, seen from the other parts of this package: URL, tables, broker, operations."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from sqlalchemy import URL, MetaData
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.django.handlers import HandlerConnections, like_a_request
from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage import make_dlq_table, make_operations_tables, make_outbox_table
from faststream_outbox.storage.postgres.drivers import Records
from faststream_outbox.storage.postgres.statements.statement import Statement
from faststream_outbox.storage.postgres.store import PostgresStore

# The entries of the setting `OUTBOX`.
_ENTRIES: Final = {"database": str, "after_commit": bool}
# The options of Django's settings that libpq has too.
_LIBPQ: Final = (
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "application_name",
    "connect_timeout",
    "service",
    "options",
)


class _DjangoStore(PostgresStore):
    """Runs the statements of publishing on a connection of Django, inside its transaction."""

    def _execute(self, session: Any, statement: Statement, /, **values: Any) -> Records:
        with session.cursor() as cursor:
            cursor.execute(statement.pyformat, values)
            return cursor.fetchall() if cursor.description else []


def option(name: str, *, default: Any) -> Any:
    """Return an entry of the setting `OUTBOX`; raise for entries that do not exist, and for values of other types."""
    given = getattr(settings, "OUTBOX", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f'OUTBOX is {given!r}, and no dict: write OUTBOX = {{"database": "default"}}.')
    for entry, value in given.items():
        if (expected := _ENTRIES.get(entry)) is None:
            raise ImproperlyConfigured(f"OUTBOX has {entry!r}, and its entries are {' and '.join(_ENTRIES)}.")
        if not isinstance(value, expected):
            raise ImproperlyConfigured(f"OUTBOX[{entry!r}] is a {expected.__name__}, not {value!r}.")
    return given.get(name, default)


def outbox_alias(using: str | None = None) -> str:
    """Return the alias of the database that has the tables: `OUTBOX = {"database": …}`, by default `default`."""
    alias: str = using or option("database", default="default")
    return alias


@lru_cache(maxsize=1)
def tables() -> dict[str, Any]:
    """Return the tables that the migrations create, as arguments of a broker."""
    metadata = MetaData()
    more = make_operations_tables(metadata)
    return {
        "outbox_table": make_outbox_table(metadata),
        "dlq_table": make_dlq_table(metadata),
        "control_table": more.control,
        "audit_table": more.audit,
        "nodes_table": more.nodes,
    }


@lru_cache(maxsize=1)
def publishing_store() -> PostgresStore:
    """Return the store that publishes on connections of Django."""
    return _DjangoStore(None, tables()["outbox_table"])


def database_url(using: str | None = None, *, driver: str = "psycopg") -> URL:
    """Return the database of Django's settings as a URL of SQLAlchemy.

    Args:
        using: The alias of the database; by default that of the outbox.
        driver: `"psycopg"` or `"asyncpg"`.

    Example:
        engine = create_async_engine(database_url())

    """
    given = connections[outbox_alias(using)].settings_dict
    options = given.get("OPTIONS") or {}
    query = {name: str(options[name]) for name in _LIBPQ if options.get(name)}
    if driver == "asyncpg" and "sslmode" in query:
        query["ssl"] = query.pop("sslmode")  # its name there
    host = given.get("HOST") or None
    if host and host.startswith("/"):
        query["host"], host = host, None
    return URL.create(
        f"postgresql+{driver}",
        username=given.get("USER") or None,
        password=given.get("PASSWORD") or None,
        host=host,
        port=int(given["PORT"]) if given.get("PORT") else None,
        database=given.get("NAME"),
        query=query,
    )


def make_broker(using: str | None = None, *, driver: str = "psycopg", **options: Any) -> OutboxBroker:
    """Return a broker on the database of Django's settings, for the process that handles messages.

    Each call of an `async def` handler has connections of Django of its own, which are closed when it has ended. Those
    of a `def` handler are closed like those of a request: at its end, or when `CONN_MAX_AGE` is over.

    Args:
        using: The alias of the database; by default that of the outbox.
        driver: `"psycopg"` or `"asyncpg"`.
        options: Options of `OutboxBroker`.

    Example:
        django.setup()
        broker = make_broker()

        @broker.subscriber("orders")
        async def handle(order_id: int) -> None: ...

        app = FastStream(broker)

    """
    # The first is the outermost: middlewares of the project may use models too.
    options["middlewares"] = (HandlerConnections, *options.get("middlewares", ()))
    broker = OutboxBroker(create_async_engine(database_url(using, driver=driver)), **tables(), **options)
    broker.config.fd_config.call_decorators = (like_a_request,)
    return broker


@asynccontextmanager
async def make_operations(using: str | None = None) -> AsyncIterator[OutboxOperations]:
    """Return what operators can read and do, on connections of its own.

    Args:
        using: The alias of the database; by default that of the outbox.

    Example:
        async with make_operations() as operations:
            await operations.retry_key(
                "orders", "customer-7", reason="the address is corrected"
            )

    """
    engine = create_async_engine(database_url(using), poolclass=NullPool)
    try:
        yield OutboxOperations(engine, **tables())
    finally:
        await engine.dispose()
