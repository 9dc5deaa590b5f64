"""A database that is a soak's alone, on a server that it may crash where that is its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from faststream_outbox.embedded import Database, EmbeddedPostgres

# Crashes the server and starts it again.
Restart = Callable[[], None]


@contextmanager
def own_database(dsn: str | None) -> Iterator[tuple[Database, Restart | None]]:
    """Make a database: on the server that was named, or on one that is ours to crash as well."""
    if dsn is not None:
        server = Database(dsn)
        database = server.create_database()
        try:
            yield database, None
        finally:
            server.drop_database(database)
        return
    # Without synchronous_commit a crash of the server may take back what was answered, and that is no fault of ours.
    settings: dict[str, str | int] = {"synchronous_commit": "on", "max_connections": 300}
    with EmbeddedPostgres(fast=True, settings=settings) as embedded:

        def restart() -> None:
            embedded.stop("immediate")
            embedded.start()

        yield embedded.create_database(), restart
