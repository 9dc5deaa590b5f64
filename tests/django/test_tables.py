"""The migrations make the tables that `validate_schema` accepts, and `makemigrations` finds nothing to add."""

import warnings
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection
from django.test import override_settings
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.django.checks import check_tables
from faststream_outbox.django.database import tables
from faststream_outbox.embedded import Database
from faststream_outbox.storage.schema.validation import validate_schema
from tests.django.conftest import point_to


async def test_the_tables_are_exactly_those_that_this_version_needs(migrated: Database) -> None:
    engine = create_async_engine(migrated.url("asyncpg"))
    made = tables()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # storage options, and the recorded version
        await validate_schema(
            engine,
            made["outbox_table"],
            made["dlq_table"],
            None,
            *(made["control_table"], made["audit_table"], made["nodes_table"]),
            check_autovacuum=True,
        )
    await engine.dispose()


def test_makemigrations_finds_nothing(project: Any) -> None:
    del project
    out = StringIO()
    call_command("makemigrations", "outbox", check=True, dry_run=True, stdout=out)
    assert out.getvalue() == "No changes detected in app 'outbox'\n"


def test_the_migration_goes_back_and_forth(outbox_postgres: Database, migrated: Database) -> None:
    point_to(outbox_postgres)
    try:
        call_command("migrate", "outbox", verbosity=0)
        assert "outbox_dlq" in connection.introspection.table_names()
        call_command("migrate", "outbox", "zero", verbosity=0)
        assert [name for name in connection.introspection.table_names() if name.startswith("outbox")] == []
    finally:
        point_to(migrated)


def test_every_model_reads_its_table(project: Any) -> None:
    del project
    for model in apps.get_app_config("outbox").get_models():
        assert list(model.objects.all()) == []


def test_checks_pass(project: Any) -> None:
    del project
    assert run_checks(databases=["default"]) == []


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"database": "other"}, "outbox.E002"),
        ({"databse": "default"}, "outbox.E001"),
        ({"database": None}, "outbox.E001"),
        ({"after_commit": "yes"}, "outbox.E001"),
        ("default", "outbox.E001"),
        (None, "outbox.E001"),
    ],
)
@pytest.mark.parametrize("databases", [None, ["default"]], ids=["without databases", "with databases"])
def test_a_wrong_setting_is_named(project: Any, setting: Any, expected: str, databases: list[str] | None) -> None:
    del project
    with override_settings(OUTBOX=setting):
        assert [message.id for message in run_checks(databases=databases)] == [expected]


def test_tables_that_are_missing_or_older_are_named(outbox_postgres: Database, migrated: Database) -> None:
    point_to(outbox_postgres)
    try:
        [missing] = check_tables(databases=["default"])
        assert (missing.id, missing.hint) == ("outbox.W002", "Run manage.py migrate outbox --database default.")
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE outbox (id int)")
            cursor.execute("COMMENT ON TABLE outbox IS 'faststream-outbox schema 1'")
        [older] = check_tables(databases=["default"])
        assert older.id == "outbox.W003"
        assert check_tables(databases=[]) == []
    finally:
        point_to(migrated)
