"""System checks: the database is Postgres, and its tables are those of this version."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from faststream_outbox.django.database import outbox_alias, tables
from faststream_outbox.storage.schema.tables import SCHEMA_VERSION, recorded_version


def check_database(**_: Any) -> list[CheckMessage]:
    """Name an outbox that is configured for no database, or for one that is not Postgres."""
    try:
        alias = outbox_alias()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="outbox.E001")]
    if alias not in connections:
        return [Error(f"The database {alias!r} of OUTBOX is not in DATABASES.", id="outbox.E002")]
    if connections[alias].vendor != "postgresql":
        hint = 'Name the alias of a Postgres by OUTBOX = {"database": …}.'
        return [Error(f"The database {alias!r} is not Postgres, which an outbox needs.", hint=hint, id="outbox.E003")]
    return []


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Name tables that were not migrated: `manage.py check --database default`, and before each `migrate`."""
    if check_database() or (alias := outbox_alias()) not in (databases or ()):
        return []
    name = tables()["outbox_table"].name
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT obj_description(to_regclass(%s), 'pg_class'), to_regclass(%s) IS NULL", [name, name])
            comment, missing = cursor.fetchone()
    except DatabaseError as error:
        return [CheckWarning(f"The tables of the outbox were not checked: {error}", id="outbox.W001")]
    hint = f"Run manage.py migrate outbox --database {alias}."
    if missing:
        return [CheckWarning(f"The table {name} is not in the database {alias!r}.", hint=hint, id="outbox.W002")]
    version = recorded_version(comment)
    if version is None or version < SCHEMA_VERSION:
        found = "no schema version" if version is None else f"schema {version}"
        return [
            CheckWarning(f"The table {name} has {found}, not schema {SCHEMA_VERSION}.", hint=hint, id="outbox.W003")
        ]
    return []
