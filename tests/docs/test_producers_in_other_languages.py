"""The programs and triggers of `docs/other-languages.md`, run as they are printed."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faststream_outbox import publish_functions_ddl
from faststream_outbox.embedded import Database
from tests.cli.outbox import Outbox
from tests.cli.programs import run

PAGE = (Path(__file__).parents[2] / "docs" / "other-languages.md").read_text()
PROGRAMS = dict(re.findall(r"^```(js|go|java)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
SQL = dict(re.findall(r"^```sql\n-- (.*?)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
# Minutes of compiling and fetching: run once by hand when a program changes, and by whom asks for it.
SLOW = pytest.mark.skipif(
    not os.environ.get("OUTBOX_TEST_LANGUAGES"), reason="it compiles for minutes: OUTBOX_TEST_LANGUAGES=1 runs it"
)


@pytest.fixture
def outbox(outbox_postgres: Database) -> Iterator[Outbox]:
    """An outbox with the functions, beside a table of orders."""
    with Outbox(outbox_postgres) as outbox:
        outbox.run("CREATE TABLE orders (customer text, product text)")
        for statement in publish_functions_ddl(outbox.table):
            outbox.run(statement)
        yield outbox


def messages(outbox: Outbox) -> list[tuple[Any, ...]]:
    rows = outbox.run("SELECT queue, entity_key, payload, headers FROM outbox ORDER BY id")
    return [(queue, key, json.loads(bytes(payload)), headers) for queue, key, payload, headers in rows]


ORDER = ("orders", "customer-7", {"product": "tea"}, {"content-type": "application/json"})


def check_order(outbox: Outbox, printed: str) -> None:
    assert printed.splitlines() == [f"message {outbox.one('SELECT id FROM outbox')}"]
    assert messages(outbox) == [ORDER]
    assert outbox.run("SELECT customer, product FROM orders") == [("customer-7", "tea")]


def run_program(*command: str, folder: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=500, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def link_node_packages(folder: Path) -> None:
    """Let programs of a folder import the driver of Node.js, which is fetched once for all runs."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no node or no npm")
    packages = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "faststream-outbox" / "node-pg-8"
    if not packages.is_dir():
        fetched = folder / "fetched"
        fetched.mkdir()
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", str(fetched), "pg@8"]
        if subprocess.run(command, capture_output=True, timeout=120, check=False).returncode:
            pytest.skip("npm could not install pg")
        packages.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # another worker was first
            shutil.move(fetched, packages)
    (folder / "node_modules").symlink_to(packages / "node_modules")


def test_sql_in_psql(outbox: Outbox, outbox_postgres: Database) -> None:
    if shutil.which("psql") is None:
        pytest.skip("there is no psql")
    # As the first command of the page, which also replaces them.
    script = run("schema", "sql", "--functions").stdout + SQL["publish"] + SQL["publish a batch"]
    done = subprocess.run(
        ["psql", outbox_postgres.dsn, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert messages(outbox) == [
        ORDER,
        ("orders", "customer-7", {"id": 1}, {"content-type": "application/json"}),
        ("orders", None, {"id": 2}, {"content-type": "application/json"}),
    ]


def test_a_program_in_javascript(outbox: Outbox, tmp_path: Path) -> None:
    link_node_packages(tmp_path)
    program = tmp_path / "shop.mjs"
    program.write_text(PROGRAMS["js"])
    check_order(outbox, run_program("node", str(program), DATABASE_URL=outbox.dsn))


def test_javascript_sends_text_bytes_and_batches(outbox: Outbox, tmp_path: Path) -> None:
    link_node_packages(tmp_path)
    program = tmp_path / "payloads.mjs"
    program.write_text(r"""
import pg from "pg";
const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
await db.connect();
await db.query("SELECT outbox_publish('q', $1)", ['a\\b "ä"']);
await db.query("SELECT outbox_publish('q', $1::bytea)", [Buffer.from([255, 0])]);
await db.query("SELECT outbox_publish_batch('q', $1::text[], keys => $2)", [['x\\y', '"'], ["k", null]]);
await db.query("SELECT outbox_publish_batch('q', $1::jsonb[])", [[JSON.stringify({ a: "\n" })]]);
await db.query("SELECT outbox_publish('q', 'x', deliver_at => $1, headers => $2)", [new Date(4e12), { a: [1] }]);
await db.end();
""")
    run_program("node", str(program), DATABASE_URL=outbox.dsn)
    rows = outbox.run("SELECT payload, entity_key FROM outbox ORDER BY id")
    assert [(bytes(payload), key) for payload, key in rows] == [
        ('a\\b "ä"'.encode(), None),
        (b"\xff\x00", None),
        (b"x\\y", "k"),
        (b'"', None),
        (b'{"a": "\\n"}', None),
        (b"x", None),
    ]
    [(due, headers)] = outbox.run(
        "SELECT extract(epoch FROM next_attempt_at)::bigint, headers FROM outbox ORDER BY id DESC LIMIT 1"
    )
    assert (due, headers) == (4_000_000_000, {"a": [1]})


@SLOW
@pytest.mark.timeout(600)
def test_a_program_in_go(outbox: Outbox, tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("there is no go")
    (tmp_path / "main.go").write_text(PROGRAMS["go"])
    (tmp_path / "go.mod").write_text("module shop\n\ngo 1.22\n")
    run_program("go", "get", "github.com/jackc/pgx/v5", folder=tmp_path)
    check_order(outbox, run_program("go", "run", ".", folder=tmp_path, DATABASE_URL=outbox.dsn))


@SLOW
@pytest.mark.timeout(600)
def test_a_program_in_java(outbox: Outbox, tmp_path: Path) -> None:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("there is no mvn or no java")
    get = f"-DoutputDirectory={tmp_path}"
    run_program("mvn", "-q", "-B", "dependency:copy", "-Dartifact=org.postgresql:postgresql:42.7.4", get)
    (tmp_path / "Shop.java").write_text(PROGRAMS["java"])
    dsn = psycopg.conninfo.conninfo_to_dict(outbox.dsn)
    url = f"jdbc:postgresql://{dsn['host']}:{dsn['port']}/{dsn['dbname']}?user={dsn['user']}"
    if dsn.get("password"):
        url += f"&password={dsn['password']}"
    jar = next(tmp_path.glob("*.jar"))
    check_order(outbox, run_program("java", "-cp", str(jar), str(tmp_path / "Shop.java"), JDBC_URL=url))


def test_a_trigger_publishes_each_row_that_changes(outbox: Outbox) -> None:
    outbox.run("CREATE TABLE customers (id int, name text)")
    outbox.run(SQL["publish each row that changes"])
    outbox.run("INSERT INTO customers VALUES (7, 'Ada')")
    outbox.run("UPDATE customers SET name = 'Grace'")
    outbox.run("DELETE FROM customers")
    assert [(queue, key, body) for queue, key, body, _ in messages(outbox)] == [
        ("customers", "7", {"change": "insert", "customer": {"id": 7, "name": "Ada"}}),
        ("customers", "7", {"change": "update", "customer": {"id": 7, "name": "Grace"}}),
        ("customers", "7", {"change": "delete", "customer": {"id": 7, "name": "Grace"}}),
    ]


def test_a_trigger_publishes_a_statement_as_one_batch(outbox: Outbox) -> None:
    outbox.run("CREATE TABLE prices (id int, cents int)")
    outbox.run("INSERT INTO prices SELECT number, 100 FROM generate_series(1, 3) number")
    outbox.run(SQL["publish each statement that changes rows"])
    outbox.run("UPDATE prices SET cents = 200 WHERE id > 1")
    outbox.run("UPDATE prices SET cents = 300 WHERE id > 5")
    assert [(queue, key, body) for queue, key, body, _ in messages(outbox)] == [
        ("prices", "2", {"id": 2, "cents": 200}),
        ("prices", "3", {"id": 3, "cents": 200}),
    ]


def test_a_change_that_is_rolled_back_is_no_message(outbox: Outbox) -> None:
    outbox.run("CREATE TABLE customers (id int, name text)")
    outbox.run(SQL["publish each row that changes"])
    outbox.run("BEGIN")
    outbox.run("INSERT INTO customers VALUES (7, 'Ada')")
    assert outbox.one("SELECT count(*) FROM outbox") == 1
    outbox.run("ROLLBACK")
    assert messages(outbox) == []
