"""A wrong setting ends the program with one sentence: where it is, what is wrong, what to do; no password."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faststream_outbox._installation import needs_extra
from faststream_outbox.cli import main
from faststream_outbox.cli.relay.logs import LOGGER
from faststream_outbox.embedded import Database
from tests.cli.programs import password_of, run

NOWHERE = "postgresql://relay:top-secret@127.0.0.1:1/nowhere"
TO = ("--to", "redis://127.0.0.1:1")
ROUTE = ("--route", "orders=s")
SHARDS = ("--ordering", "hash-shards", "--shards", "8")
COMMAND_LINE = needs_extra("The command line", "cli")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Restore the logging of this process, which the program sets up."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    LOGGER.handlers.clear()


@pytest.fixture
def refused_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the program in this process, which is quicker."""
    monkeypatch.setenv("OUTBOX_DSN", NOWHERE)

    def refused_here(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["faststream-outbox", "relay", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        shown = capsys.readouterr().err
        assert "top-secret" not in shown
        assert shown.startswith("Error: ")
        return shown.removeprefix("Error: ").strip()

    return refused_here


def refused(*arguments: str, code: int, dsn: str | None = NOWHERE, **options: object) -> str:
    done = run("relay", *arguments, **({"OUTBOX_DSN": dsn} if dsn else {}), **options)  # type: ignore[arg-type]
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "top-secret" not in done.stdout + done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return line.removeprefix("Error: ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--to", "mqtt://somewhere", *ROUTE),
            "--to: mqtt:// is not known; write one of kafka://, kafka+confluent://, amqp://, amqps://, nats://, ",
        ),
        (
            (*TO, *ROUTE, "--dsn", f"{NOWHERE}?prepared_statement_cache_size=many"),
            "--dsn: invalid literal for int() with base 10: 'many'",
        ),
        ((*TO, *ROUTE, "--check", "--health", "x"), "--health: 'x' is not an address; write host:port, or a port."),
        ((*TO, *ROUTE, "--check", "--health", "99999"), "--health: '99999' has no port: the last one is 65535."),
        (TO, "routes is not set: give --route queue=destination, or set OUTBOX_ROUTES, or write routes into the file"),
        ((*TO, "--route", "orders"), "--route: 'orders' is not a route; write queue=destination."),
        ((*TO, "--route", "orders="), "--route: 'orders=' is not a route; write queue=destination."),
        ((*TO, "--route", "a=b", "--route", "a=c"), "--route: queue 'a' has two routes, 'b' and 'c'; keep one."),
        (
            (*TO, "--route", "a=header:"),
            "--route: 'header:' is incomplete; write header:name, or header:name|default.",
        ),
        (
            (*TO, "--route", "a=header:where=b,,c"),
            "--route: 'header:where=b,,c' allows nothing, or an empty name; write header:name=orders,audit-*.",
        ),
        (
            ("--to", "kafka://127.0.0.1:1", "--route", "a=no topic"),
            "--route: 'no topic' cannot be a topic: ",
        ),
        (
            ("--to", "kafka://127.0.0.1:1?client=7", *ROUTE),
            "--to: KafkaBroker has no option 'client'; did you mean 'client_id'?",
        ),
        (
            ("--to", "kafka://relay:top-secret@127.0.0.1:1", *ROUTE),
            "--to: the URL of Kafka has no user and no password; write them into [to.security] of a file.",
        ),
        (
            (*TO, *ROUTE, "--ordering", "none"),
            "--ordering: this must be 'head-lease', 'advisory-locks' or 'hash-shards', not 'none'.",
        ),
        (
            (*TO, *ROUTE, *SHARDS, "--own-shards", "one"),
            "--own-shards: 'one' names no shards; write 0,1,8-11, or 2/5 for node 2 of 5, counted from 0.",
        ),
        (
            (*TO, *ROUTE, *SHARDS, "--own-shards", "6-8"),
            "--own-shards: '6-8' names shard 8, and the 8 shards are 0 to 7.",
        ),
        ((*TO, *ROUTE, *SHARDS, "--own-shards", "5-2"), "--own-shards: '5-2' ends before it begins; write 2-5."),
        (
            (*TO, *ROUTE, *SHARDS, "--own-shards", "3/3"),
            "--own-shards: '3/3' is no node: the nodes of 3 are 0/3 to 2/3.",
        ),
        (
            (*TO, *ROUTE, *SHARDS, "--own-shards", "8/9"),
            "--own-shards: 9 nodes cannot share 8 shards: have at least as many shards as nodes.",
        ),
        (
            (*TO, *ROUTE, "--own-shards", "0"),
            "--own-shards: the ordering is head-lease, which has no shards: set the ordering to hash-shards, or leave ",
        ),
        (
            (*TO, *ROUTE, "--retry-strategy", "constnat?delay_seconds=5"),
            "--retry-strategy: 'constnat' is no strategy; did you mean 'constant'?",
        ),
        (
            (*TO, *ROUTE, "--retry-strategy", "constant?delay_second=5"),
            "--retry-strategy: constant has no argument 'delay_second'; did you mean 'delay_seconds'?",
        ),
        (
            (*TO, *ROUTE, "--retry-strategy", "linear?step_seconds=2"),
            "--retry-strategy: linear needs initial_delay_seconds; write linear?initial_delay_seconds=1&step_seconds=1",
        ),
        (
            (*TO, *ROUTE, "--retry-strategy", "constant?delay_seconds=5&max_attempts=0"),
            "--retry-strategy: max_attempts",
        ),
        ((*TO, *ROUTE, "--retry-strategy", "constant?delay_seconds=long"), "--retry-strategy: delay_seconds"),
        ((*TO, *ROUTE, "--retry-strategy", "none?max_attempts=1"), "--retry-strategy: none has no argument "),
        (
            (*TO, *ROUTE, "--min-fetch-interval", "20"),
            "--min-fetch-interval: min_fetch_interval (20) is more than max_fetch_interval (10): lower the first or ",
        ),
        ((*TO, *ROUTE, "--health", "here"), "--health: 'here' is not an address; write host:port, or a port."),
        ((*TO, *ROUTE, "--dsn", "mysql://a:top-secret@b"), "--dsn: mysql:// is not Postgres; write "),
        ((*TO, *ROUTE, "--dsn", "top-secret"), "--dsn: this is not a URL; write postgresql://user@host:5432/database."),
        ((*TO, *ROUTE, "--dsn", "env:NOT_THERE"), "--dsn: the variable NOT_THERE is not set."),
        (
            (*TO, *ROUTE, "--config", "/no/such.toml"),
            "/no/such.toml: this file cannot be read: No such file or directory.",
        ),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_wrong_option(arguments: tuple[str, ...], sentence: str, refused_here: Callable[..., str]) -> None:
    assert refused_here(*arguments).startswith(sentence)


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("OUTBOX_TO", "mqtt://relay:top-secret@h", "OUTBOX_TO: mqtt:// is not known; write one of kafka://"),
        ("OUTBOX_TO", "top-secret", "OUTBOX_TO: this is not a URL; write one of kafka://"),
        ("OUTBOX_DSN", "mysql://a:top-secret@h", "OUTBOX_DSN: mysql:// is not Postgres; write "),
        ("OUTBOX_LEASE_TTL_SECONDS", "soon", "OUTBOX_LEASE_TTL_SECONDS: this must be a valid number, not 'soon'."),
        ("OUTBOX_MAX_WORKERS", "0", "OUTBOX_MAX_WORKERS: max_workers is 1 or more, not 0."),
        ("OUTBOX_MAX_WORKERS", "9" * 30, "OUTBOX_MAX_WORKERS: max_workers is 10000 at most, not 999"),
        (
            "OUTBOX_OWN_SHARDS",
            "$(POD_INDEX)/3",
            "OUTBOX_OWN_SHARDS: '$(POD_INDEX)/3' names no shards; write 0,1,8-11, ",
        ),
        ("OUTBOX_ROUTES", "{", 'OUTBOX_ROUTES: this is not JSON; write {"queue": "destination"}.'),
    ],
)
def test_a_wrong_variable(
    variable: str, value: str, sentence: str, monkeypatch: pytest.MonkeyPatch, refused_here: Callable[..., str]
) -> None:
    monkeypatch.setenv("OUTBOX_TO", "redis://127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    assert refused_here(*ROUTE).startswith(sentence)


def test_the_source_that_won_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_here: Callable[..., str]
) -> None:
    file = tmp_path / "relay.toml"
    file.write_text("to = 'redis://h'\nshards = 16\nordering = 'hash-shards'")
    assert refused_here(*ROUTE, "--config", str(file), "--shards", "3").startswith("--shards: ")
    monkeypatch.setenv("OUTBOX_TO", "mqtt://h")
    assert refused_here(*ROUTE, "--config", str(file)).startswith("OUTBOX_TO: ")
    monkeypatch.delenv("OUTBOX_TO")
    file.write_text("to = 'mqtt://h'")
    assert refused_here(*ROUTE, "--config", str(file)).startswith(f"{file}: to: ")


def test_an_argument_is_shown_without_its_password(refused_here: Callable[..., str]) -> None:
    shown = refused_here(*TO, *ROUTE, "postgresql://relay:top-secret@h/d")
    assert shown.startswith("'postgresql://relay:***@h/d' is not an option; ")
    # An address that cannot be taken apart is not shown at all.
    assert refused_here(*TO, *ROUTE, "relay:top-secret@h").startswith("'***' is not an option; ")


def test_a_sentence_of_the_process() -> None:
    assert refused("--to", "mqtt://somewhere", *ROUTE, code=2).startswith("--to: mqtt:// is not known; write")


def test_no_database() -> None:
    assert refused(*TO, *ROUTE, code=2, dsn=None).startswith("dsn is not set: give --dsn postgresql://")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tabel = 'outbox'", ": tabel: this key is unknown; did you mean 'table'?"),
        ("zzz = 1", ": zzz: this key is unknown; known are audit_table, cloudevents, "),
        ("[to]\nuri = 'redis://'", ": to.uri: this key is unknown; did you mean 'url'?"),
        ("shards = true", ": shards: this must be a valid integer, not True."),
        ("lease_ttl_seconds = '60'", ": lease_ttl_seconds: this must be a valid number, not '60'."),
        ("own_shards = [0, 'one']", ": own_shards: '0,one' names no shards; write 0,1,8-11, or 2/5"),
        ("max_workers = 0", ": max_workers: max_workers is 1 or more, not 0."),
        ("[routes]\norders = 1", ": routes.orders: this must be a valid string, not 1."),
        ("max_workers = 100000", ": max_workers: max_workers is 10000 at most, not 100000: start more processes."),
        ("max_workers = 3\nmax-workers = 4", ": max_workers and max-workers are the same setting: write one of them."),
        ("on-dead = 'skip'\non_dead = 'skip'", ": on-dead and on_dead are the same setting: write one of them."),
        (f"graceful_timeout = {'9' * 400}", ": graceful_timeout: "),
        (
            f"retry-strategy = 'constant?delay_seconds={'9' * 400}'",
            ": retry_strategy: delay_seconds is a finite number",
        ),
        ("dsn = ", ": this file is not TOML:"),
    ],
)
def test_a_wrong_file(text: str, sentence: str, tmp_path: Path, refused_here: Callable[..., str]) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(text)
    shown = refused_here(*TO, *ROUTE, "--config", str(file))
    assert shown.startswith(str(file))
    assert sentence in shown


def test_an_unknown_key_of_the_security(tmp_path: Path, refused_here: Callable[..., str]) -> None:
    file = tmp_path / "relay.toml"
    file.write_text("[to]\nurl = 'kafka://h:1'\nsecurity = {user = 'relay'}")
    shown = refused_here(*ROUTE, "--config", str(file))
    assert shown == f"{file}: to.security.user: this key is unknown; did you mean 'username'?"


@pytest.mark.parametrize(
    ("missing", "to", "sentence"),
    [
        ("aiokafka", "kafka://h:1", f"{needs_extra('Sending to kafka://', 'kafka')}."),
        ("nats", "nats://h:1", f"{needs_extra('Sending to nats://', 'nats')}."),
        ("typer", "nats://h:1", f"typer is not installed. {COMMAND_LINE}."),
        ("pydantic_settings", "nats://h:1", f"pydantic_settings is not installed. {COMMAND_LINE}."),
    ],
)
def test_a_missing_extra(missing: str, to: str, sentence: str) -> None:
    assert refused("--to", to, *ROUTE, code=1, command=without(missing)) == sentence


def test_no_view_without_rich() -> None:
    shown = refused(*TO, *ROUTE, "--progress", code=1, command=without("rich"))
    assert shown == f"rich is not installed. {needs_extra('The live view', 'cli')}, or give --no-progress."


def test_missing_drivers() -> None:
    shown = refused(*TO, *ROUTE, code=1, command=without("asyncpg", "psycopg"))
    assert shown == f"Not installed: asyncpg and psycopg. {needs_extra('A connection to Postgres', 'asyncpg')}."
    shown = refused(*TO, *ROUTE, code=1, command=without("psycopg"), dsn="postgresql+psycopg://h/d")
    assert shown == f"Not installed: psycopg. {needs_extra('A connection to Postgres', 'psycopg')}."


def without(*modules: str) -> tuple[str, ...]:
    """The program where some modules cannot be imported."""
    hidden = "".join(f"sys.modules[{module!r}] = None; " for module in modules)
    return sys.executable, "-c", f"import sys; {hidden}from faststream_outbox.cli import main; main()"


def test_no_server_answers() -> None:
    assert refused(*TO, *ROUTE, code=1).startswith('The outbox "outbox" cannot be read: ')


async def test_a_missing_table(outbox_postgres: Database) -> None:
    shown = refused(*TO, *ROUTE, code=1, dsn=outbox_postgres.dsn)
    assert shown.startswith('The outbox "outbox" is not in the database: create it by a migration')
    assert password_of(outbox_postgres) not in shown


@pytest.mark.usefixtures("outbox")
async def test_a_missing_table_of_shards(outbox_postgres: Database) -> None:
    options = (*TO, *ROUTE, "--ordering", "hash-shards", "--shards-table", "elsewhere")
    assert refused(*options, code=1, dsn=outbox_postgres.dsn).startswith('The table of shards "elsewhere" is not')


async def test_a_wrong_password(outbox_postgres: Database) -> None:
    dsn = outbox_postgres.dsn.replace(password_of(outbox_postgres), "top-secret")
    assert "password authentication failed" in refused(*TO, *ROUTE, code=1, dsn=dsn)


def test_an_unknown_option() -> None:
    done = run("relay", "--tow", "redis://")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "--tow" in done.stderr
