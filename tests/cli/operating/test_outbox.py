"""A command finds its outbox by settings, a file or an application; if not, it says what to do."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from tests.cli.outbox import Done, Outbox
from tests.cli.programs import run

Command = Callable[..., Done]
SERVICE = """
import os
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine
from faststream import FastStream
from faststream_outbox import OutboxBroker, make_dlq_table, make_outbox_table

metadata = MetaData()
engine = create_async_engine(os.environ["SHOP_DATABASE"])
tables = {"outbox_table": make_outbox_table(metadata, "mail"), "dlq_table": make_dlq_table(metadata, "lost")}
broker = OutboxBroker(engine, **tables)
publishing = OutboxBroker(outbox_table=make_outbox_table(MetaData(), "mail"))
app = FastStream(broker)
number = 7
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outbox_postgres: Database) -> Iterator[str]:
    """The name of a module in the present folder."""
    name = f"service_{outbox_postgres.name}"
    (tmp_path / f"{name}.py").write_text(SERVICE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("SHOP_DATABASE", outbox_postgres.url("asyncpg"))
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("attribute", ["broker", "app"])
def test_an_application_names_the_database_and_the_tables(
    command: Command, service: str, outbox_postgres: Database, attribute: str
) -> None:
    app = ("--app", f"{service}:{attribute}")
    missing = command("schema", "check", *app)
    assert missing.code == 1
    assert missing.err.startswith("Error: The table mail is not in the database: create it")
    ddl = command("schema", "sql", *app).out
    assert [line.split()[2] for line in ddl.splitlines() if line.startswith("CREATE TABLE")] == ["mail", "lost"]
    with Outbox(outbox_postgres) as outbox:
        outbox.run(ddl)
    assert command("schema", "check", *app).code == 0
    assert command("messages", "show", 1, *app).err.startswith("Error: There is no message 1: ")


def test_an_application_that_only_publishes_needs_a_dsn(
    command: Command, service: str, outbox_postgres: Database
) -> None:
    app = ("--app", f"{service}:publishing")
    assert command("schema", "check", *app).err.startswith("Error: dsn is not set: ")
    with Outbox(outbox_postgres) as outbox:
        outbox.run(command("schema", "sql", *app).out)
    assert command("schema", "check", *app, "--dsn", outbox_postgres.dsn).code == 0


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("broker", (2, "--app: 'broker' names no broker; write module:attribute, such as service:broker.")),
        ("nowhere:broker", (2, "--app: there is no module nowhere; run the command in its folder.")),
        ("{service}:brokr", (2, "--app: {service} has no brokr; name its broker.")),
        ("{service}:number", (2, "--app: {service}:number is a int, not an OutboxBroker; name the broker.")),
        ("broken:broker", (1, "--app: importing broken failed: ZeroDivisionError: division by zero")),
        ("lacking:broker", (1, "--app: importing lacking failed: No module named 'no_such_package'.")),
    ],
)
def test_an_application_that_cannot_be_used(
    command: Command, service: str, tmp_path: Path, target: str, error: tuple[int, str]
) -> None:
    code, sentence = error
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "lacking.py").write_text("import no_such_package")
    done = command("schema", "sql", "--app", target.format(service=service))
    assert (done.code, done.err) == (code, f"Error: {sentence.format(service=service)}\n")


def test_the_file_of_a_relay_is_understood(outbox: Outbox, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(f'dsn = "{outbox.dsn}"\nto = "redis://h"\nmax_workers = 3\n[routes]\norders = "s"\n')
    assert command("schema", "check", "--config", file).code == 0
    file.write_text(f'dsn = "{outbox.dsn}"\ntabel = "outbox"\n')
    wrong = command("schema", "check", "--config", file)
    assert (wrong.code, wrong.err) == (2, f"Error: {file}: tabel: this key is unknown; did you mean 'table'?\n")


def test_tables_that_are_missing_are_named(command: Command, outbox_postgres: Database) -> None:
    done = command("messages", "show", 1, dsn=outbox_postgres.dsn)
    assert done.code == 1
    assert done.err == (
        "Error: The table outbox is not in the database: create it, `faststream-outbox schema sql` prints its DDL; or "
        "name another by --table or --schema.\n"
    )


def test_an_optional_table_that_is_missing_is_named_where_it_is_needed(outbox: Outbox, operate: Command) -> None:
    outbox.run("DROP TABLE outbox_audit")
    done = operate("audit", "list")
    assert done.code == 1
    assert done.err.startswith("Error: The audit needs audit_table=…: ")


@pytest.mark.parametrize("driver", ["", "+psycopg"])
def test_a_database_that_cannot_be_reached_is_one_line_without_the_password(command: Command, driver: str) -> None:
    done = command("messages", "show", 1, "--dsn", f"postgresql{driver}://shop:top-secret@127.0.0.1:1/shop")
    assert done.code == 1
    assert "top-secret" not in done.err
    [line] = done.err.splitlines()
    assert line.startswith("Error: The database cannot be reached: ")
    assert line.endswith("; check --dsn (OUTBOX_DSN) and the server.")


def test_a_database_that_is_missing_is_one_line_without_the_password(outbox_postgres: Database) -> None:
    place = outbox_postgres.dsn.partition("@")[2].rpartition("/")[0]
    done = run("messages", "show", "1", OUTBOX_DSN=f"postgresql://shop:top-secret@{place}/nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert "top-secret" not in done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: The database cannot be reached: ")
