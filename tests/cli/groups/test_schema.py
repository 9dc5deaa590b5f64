"""`schema sql`, `schema alembic` and `schema check`."""

import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from faststream_outbox.embedded import Database
from faststream_outbox.storage.schema.tables import SCHEMA_VERSION
from tests.cli.outbox import Done, Outbox
from tests.cli.programs import run
from tests.storage.schema.test_versions import ROWS, VERSIONS

Command = Callable[..., Done]
ALL_KINDS = ("outbox", "dlq", "control", "audit", "nodes", "shards", "inbox")


def execute(database: Database, script: str) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for statement in filter(str.strip, script.split(";\n")):
            connection.execute(statement.encode())


def tables_of(database: Database) -> list[str]:
    with psycopg.connect(database.dsn) as connection:
        return [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]


def test_the_ddl_needs_no_database_is_only_sql_and_the_same_every_time() -> None:
    first, second = run("schema", "sql"), run("schema", "sql")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == second.stdout
    assert {line.split()[0] for line in first.stdout.splitlines() if line and line[0].isalpha()} == {
        "CREATE",
        "COMMENT",
    }


def test_the_ddl_makes_tables_that_the_check_accepts(command: Command, outbox_postgres: Database) -> None:
    execute(outbox_postgres, command("schema", "sql", *ALL_KINDS).out)
    checked = command("schema", "check", dsn=outbox_postgres.dsn)
    assert (checked.code, checked.out) == (0, "The tables have what this version needs.\n")
    assert "outbox_inbox" in checked.err
    assert command("schema", "check", "-o", "json").json == []


def test_the_tables_can_have_other_names_and_a_schema(command: Command, outbox_postgres: Database) -> None:
    names = ("--table", "mail", "--dlq-table", "mail lost", "--schema", "shop")
    execute(outbox_postgres, "CREATE SCHEMA shop;\n" + command("schema", "sql", *names).out)
    assert command("schema", "check", *names, dsn=outbox_postgres.dsn).code == 0
    [line] = command("schema", "check", *names, "--nodes-table", "x").err.splitlines()
    assert line == (
        "Error: The table shop.x is not in the database: create it, `faststream-outbox schema sql` prints its DDL; or "
        "name another by --nodes-table or --schema."
    )


@pytest.mark.parametrize("version", [0, 1])
def test_an_upgrade_prints_what_tables_of_an_older_version_need(
    command: Command, outbox_postgres: Database, version: int
) -> None:
    kinds = ("outbox", "dlq", "shards", "inbox", "control", "audit", "nodes")
    old = VERSIONS["schema 1" if version else "with an inbox and shards"]
    execute(outbox_postgres, old + ROWS)
    wrong = command("schema", "check", dsn=outbox_postgres.dsn)
    assert wrong.code == 1
    assert "CREATE INDEX CONCURRENTLY outbox_dlq_correlation_idx" in wrong.out
    assert "Run this DDL outside a transaction." in wrong.err
    execute(outbox_postgres, command("schema", "sql", *kinds, "--from", version).out)
    assert command("schema", "check").out == "The tables have what this version needs.\n"
    assert {"outbox_audit", "outbox_control", "outbox_nodes"} <= set(tables_of(outbox_postgres))


@pytest.mark.parametrize("given", ["0.9", "one", "-1"])
def test_an_upgrade_is_from_the_number_of_a_schema(command: Command, given: str) -> None:
    done = command("schema", "sql", f"--from={given}")
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.startswith(
        f"Error: --from: {given!r} is not the number of a schema, which is no version of the package"
    )


def test_tables_of_this_version_need_nothing(command: Command) -> None:
    assert command("schema", "sql", "--from", SCHEMA_VERSION).out == ""
    later = command("schema", "sql", "--from", SCHEMA_VERSION + 1)
    assert later.code == 2
    assert later.err.startswith(f"Error: --from: There is no schema {SCHEMA_VERSION + 1}: ")


@pytest.mark.parametrize("version", [None, 1])
def test_a_migration_of_alembic_creates_the_tables_and_drops_them(
    command: Command, outbox_postgres: Database, tmp_path: Path, version: int | None
) -> None:
    if version is not None:
        execute(outbox_postgres, VERSIONS["schema 1"])
    options = () if version is None else ("--from", version)
    printed = command("schema", "alembic", *options, "--revision", "abc123").out
    assert printed == command("schema", "alembic", *options, "--revision", "abc123").out
    migrate(tmp_path, printed, outbox_postgres, "upgrade", "head")
    assert command("schema", "check", dsn=outbox_postgres.dsn).err.startswith("Compared: outbox, outbox_dlq")
    assert "outbox_audit" in tables_of(outbox_postgres)
    migrate(tmp_path, printed, outbox_postgres, "downgrade", "base")
    # An upgrade removes nothing, so there is nothing to undo.
    assert ("outbox" in tables_of(outbox_postgres)) == (version is not None)


def migrate(folder: Path, migration: str, database: Database, *arguments: str) -> None:
    from alembic.command import downgrade, upgrade  # noqa: PLC0415 - only here
    from alembic.config import Config  # noqa: PLC0415

    versions = folder / "versions"
    versions.mkdir(exist_ok=True)
    (versions / "abc123_outbox.py").write_text(migration)
    (folder / "env.py").write_text(
        "from alembic import context\n"
        "from sqlalchemy import create_engine\n"
        f"engine = create_engine({database.url('psycopg')!r})\n"
        "with engine.connect() as connection:\n"
        "    context.configure(connection=connection, transaction_per_migration=True)\n"
        "    with context.begin_transaction():\n"
        "        context.run_migrations()\n"
        "engine.dispose()\n"
    )
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    {"upgrade": upgrade, "downgrade": downgrade}[arguments[0]](config, arguments[1])


def test_the_id_of_a_revision_follows_its_ddl(command: Command) -> None:
    revisions = [
        re.findall(r"^revision = '(\w{12})'$", command("schema", "alembic", *kinds).out, re.MULTILINE)
        for kinds in (("outbox",), ("outbox",), ("dlq",))
    ]
    assert revisions[0] == revisions[1]
    assert revisions[0] != revisions[2]
    assert all(len(each) == 1 for each in revisions)


def test_a_fault_is_named_with_its_ddl(outbox: Outbox, operate: Command) -> None:
    outbox.run("DROP INDEX outbox_key_idx")
    found = operate("schema", "check", "-o", "jsonl")
    assert found.code == 1
    [fault] = found.lines
    assert fault["problem"].startswith("public.outbox: ")
    execute(outbox.database, fault["ddl"][0])
    assert operate("schema", "check").code == 0


@pytest.mark.parametrize("kind", ["producer", "consumer", "operator", "viewer"])
def test_grants_give_a_role_what_it_needs(outbox: Outbox, operate: Command, kind: str) -> None:
    role = f"{kind} {outbox.database.name}"
    outbox.run(f'CREATE ROLE "{role}"')
    try:
        printed = operate("schema", "grants", "--role", role, "--as", kind)
        assert printed.code == 0
        execute(outbox.database, printed.out)
        [(reads, deletes)] = outbox.run(
            "SELECT has_table_privilege(%s, 'outbox', 'SELECT'), has_table_privilege(%s, 'outbox', 'DELETE')",
            role,
            role,
        )
        assert (reads, deletes) == (kind != "producer", kind in {"consumer", "operator"})
    finally:
        outbox.run(f'DROP OWNED BY "{role}"')
        outbox.run(f'DROP ROLE "{role}"')


def test_grants_need_a_role_and_its_kind(command: Command) -> None:
    assert command("schema", "grants", "--role", "shop").err.startswith("Error: Missing option '--as'. ")
    assert command("schema", "grants", "--role", "", "--as", "viewer").err.startswith("Error: --role: ")
    assert command("schema", "grants", "dlq", "--role", "shop", "--as", "viewer").code == 2


def test_functions_are_printed_checked_and_granted(outbox: Outbox, operate: Command) -> None:
    printed = operate("schema", "sql", "--functions").out
    assert printed == operate("schema", "sql", "outbox", "--functions").out
    outbox.run(printed)
    assert operate("schema", "check").code == 0
    outbox.run("COMMENT ON FUNCTION outbox_publish(text, text, jsonb, text, timestamptz, text) IS NULL")
    found = operate("schema", "check", "-o", "jsonl")
    [fault] = found.lines
    assert fault["problem"] == (
        "public.outbox_publish(text, text, jsonb, text, timestamp with time zone, text) is missing"
    )
    for statement in fault["ddl"]:
        outbox.run(statement)
    assert operate("schema", "check").code == 0
    granted = operate("schema", "grants", "--functions", "--role", "shop", "--as", "producer").out
    assert granted.splitlines()[-1].startswith("GRANT EXECUTE ON FUNCTION public.outbox_publish(text, bytea, ")
    for kind, more in (("viewer", ("--functions",)), ("producer", ())):
        assert "EXECUTE" not in operate("schema", "grants", "--role", "shop", "--as", kind, *more).out


def test_functions_are_in_the_schema_of_their_table(command: Command) -> None:
    assert "FUNCTION app.outbox_publish(" in command("schema", "sql", "--functions", "--functions-schema", "app").out
    of_a_schema = command("schema", "sql", "--functions", "--schema", "shop", "--table", "mail").out
    assert "FUNCTION shop.mail_publish(" in of_a_schema
    wrong = command("schema", "sql", "dlq", "--functions")
    assert (wrong.code, wrong.err) == (2, "Error: --functions are those of the outbox: name it.\n")


def test_a_migration_of_alembic_creates_the_functions_and_drops_them(
    command: Command, outbox: Outbox, tmp_path: Path
) -> None:
    printed = command("schema", "alembic", "--functions", "--revision", "abc123").out
    migrate(tmp_path, printed, outbox.database, "upgrade", "head")
    assert outbox.one("SELECT outbox_publish('orders', 'x', '{\"a\": 1}')") == 1
    migrate(tmp_path, printed, outbox.database, "downgrade", "base")
    assert outbox.one("SELECT count(*) FROM pg_proc WHERE proname LIKE 'outbox!_publish%' ESCAPE '!'") == 0
