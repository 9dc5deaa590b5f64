"""Where to connect: one database of a PostgreSQL server."""

import secrets

from sqlalchemy import URL, make_url

from faststream_outbox.embedded.admin import AdminSession

# Names the server that tests use instead of starting one.
DSN_VARIABLE = "OUTBOX_TEST_DSN"


class Database:
    """One database, known by its connection string.

    ```python
    maintenance = Database("postgresql://user:secret@127.0.0.1:5432/postgres")
    fresh = maintenance.create_database()
    engine = create_async_engine(fresh.url("asyncpg"))
    ...
    maintenance.drop_database(fresh)
    ```
    """

    def __init__(self, dsn: str | URL) -> None:
        self._url = make_url(dsn).set(drivername="postgresql")

    @property
    def name(self) -> str:
        """The name of the database."""
        return self._url.database or ""

    @property
    def dsn(self) -> str:
        """The connection string in libpq's form: `postgresql://user:password@host:port/name`."""
        return self._url.render_as_string(hide_password=False)

    def url(self, driver: str = "asyncpg") -> str:
        """Return the SQLAlchemy URL for `driver`: `postgresql+asyncpg://…`."""
        url = self._url.set(drivername=f"postgresql+{driver}")
        if driver == "asyncpg":
            # asyncpg takes libpq's sslmode under another name.
            url = url.set(query={"ssl" if name == "sslmode" else name: value for name, value in url.query.items()})
        return url.render_as_string(hide_password=False)

    def sibling(self, name: str | None = None) -> "Database":
        """Another database of the same server; by default of a name that nobody uses yet. It is not created."""
        return Database(self._url.set(database=name or f"outbox_{secrets.token_hex(8)}"))

    def create_database(self, name: str | None = None) -> "Database":
        """Make an empty database on the same server.

        Blocks; in async code use `await asyncio.to_thread(database.create_database)`.
        """
        created = self.sibling(name)
        with AdminSession(self) as admin:
            admin.create(created.name)
        return created

    def drop_database(self, database: "Database") -> None:
        """Drop another database of the same server, whoever is still connected to it; blocks as well."""
        with AdminSession(self) as admin:
            admin.drop(database.name)

    def __repr__(self) -> str:
        return f"<Database {self._url.render_as_string(hide_password=True)}>"
