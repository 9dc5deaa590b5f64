"""One migrated database for all tests of a worker; each begins with empty tables."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections
from sqlalchemy import make_url

from faststream_outbox.embedded import Database
from tests.django.project import configure

configure()


def environment(database: Database) -> dict[str, str]:
    """Return the variables by which a project of its own process finds a database."""
    url = make_url(database.dsn)
    parts = {
        "HOST": url.host,
        "PORT": url.port,
        "DATABASE": url.database,
        "USER": url.username,
        "PASSWORD": url.password,
    }
    return {f"PG{name}": str(value or "") for name, value in parts.items()}


def point_to(database: Database) -> None:
    """Let Django connect to a database, in all threads."""
    connections.close_all()
    found = environment(database)
    connections.settings["default"].update(
        {name: found[f"PG{name}"] for name in ("HOST", "PORT", "USER", "PASSWORD")}, NAME=found["PGDATABASE"]
    )


@pytest.fixture(scope="session")
def migrated(outbox_postgres_server: Database) -> Iterator[Database]:
    """A database that `manage.py migrate` has made."""

    database = outbox_postgres_server.create_database()
    point_to(database)
    call_command("migrate", run_syncdb=True, verbosity=0, interactive=False)
    yield database
    outbox_postgres_server.drop_database(database)


@pytest.fixture
def project(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The connection of a project whose tables are empty."""
    for name in [name for name in os.environ if name.startswith("OUTBOX_")]:
        monkeypatch.delenv(name)
    point_to(migrated)
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE outbox, outbox_dlq, outbox_audit, outbox_control, outbox_nodes, shop_order, auth_user, "
            "django_session, django_admin_log RESTART IDENTITY CASCADE"
        )
    yield connection
    connections.close_all()
