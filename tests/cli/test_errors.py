"""What is wrong is told in a sentence."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faststream_outbox.cli.logs import LOGGER
from faststream_outbox.cli.main import main
from faststream_outbox.embedded import Database
from tests.cli.programs import password_of, run

NOWHERE = "postgresql://relay:top-secret@127.0.0.1:1/nowhere"
TO = ("--to", "redis://127.0.0.1:1")
ROUTE = ("--route", "orders=s")
INSTALL = "pip install 'faststream-outbox"


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """The program sets the logging of its process up, which is ours here."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    LOGGER.handlers.clear()


@pytest.fixture
def refused_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the program in this process, which is quicker."""

    def refused_here(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["faststream-outbox", "relay", *arguments])
        monkeypatch.setenv("OUTBOX_DSN", NOWHERE)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        told = capsys.readouterr().err
        assert "top-secret" not in told
        assert told.startswith("Error: ")
        return told.removeprefix("Error: ").strip()

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
            "There is no broker at mqtt://: kafka://, kafka+confluent://, amqp://, amqps://, nats://, redis://, redi",
        ),
        ((*TO, *ROUTE, "--check", "--health", "x"), "--health 'x' is no address: host:port, or a port."),
        (TO, "There is no route: --route queue=destination, or [routes] in the file of --config."),
        ((*TO, "--route", "orders"), "--route 'orders' is no route: --route queue=destination."),
        ((*TO, "--route", "orders="), "--route 'orders=' is no route: --route queue=destination."),
        ((*TO, "--route", "a=b", "--route", "a=c"), "Queue 'a' has two routes: 'b' and 'c'."),
        (
            (*TO, "--route", "a=header:"),
            "The route of queue 'a' is 'header:': header:name, or header:name|default with a destination.",
        ),
        (
            ("--to", "kafka://127.0.0.1:1", "--route", "a=no topic"),
            "'no topic' is no topic: up to 249 letters, digits, dots, underscores and hyphens.",
        ),
        (
            ("--to", "kafka://127.0.0.1:1?client=7", *ROUTE),
            "The option of KafkaBroker 'client' is unknown: did you mean 'client_id'?",
        ),
        (
            ("--to", "kafka://relay:top-secret@127.0.0.1:1", *ROUTE),
            "Kafka's URL has no user and no password: write [to.security] into the file of --config.",
        ),
        ((*TO, *ROUTE, "--ordering", "none"), "--ordering is head-lease, advisory-locks or hash-shards, not 'none'."),
        ((*TO, *ROUTE, "--health", "here"), "--health 'here' is no address: host:port, or a port."),
        ((*TO, *ROUTE, "--dsn", "mysql://a:top-secret@b"), "dsn begins with mysql://, and an outbox is in Postgres:"),
        ((*TO, *ROUTE, "--dsn", "top-secret"), "dsn is no URL: postgresql://user@host:5432/database."),
        ((*TO, *ROUTE, "--dsn", "env:NOT_THERE"), "dsn is 'env:NOT_THERE', and the environment has no NOT_THERE."),
        ((*TO, *ROUTE, "--config", "/no/such.toml"), "/no/such.toml cannot be read: No such file or directory."),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense(arguments: tuple[str, ...], sentence: str, refused_here: Callable[..., str]) -> None:
    assert refused_here(*arguments).startswith(sentence)


def test_a_sentence_of_the_process() -> None:
    assert refused("--to", "mqtt://somewhere", *ROUTE, code=2).startswith("There is no broker at mqtt://: kafka://,")


def test_no_database() -> None:
    assert refused(*TO, *ROUTE, code=2, dsn=None).startswith("There is no database: set OUTBOX_DSN=")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tabel = 'outbox'", "the key 'tabel' is unknown: did you mean 'table'?"),
        ("zzz = 1", "the key 'zzz' is unknown: there are cloudevents, dlq_table, dsn,"),
        ("[to]\nuri = 'redis://'", "the key 'to.uri' is unknown: did you mean 'to.url'?"),
        ("shards = true", "shards is a whole number, not True."),
        ("lease_ttl = '60'", "lease_ttl is a whole number or a number, not '60'."),
        ("[routes]\norders = 1", "the route of queue 'orders' is a string, not 1."),
        ("dsn = ", "no TOML:"),
    ],
)
def test_a_file_that_makes_no_sense(text: str, sentence: str, tmp_path: Path, refused_here: Callable[..., str]) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(text)
    told = refused_here(*TO, *ROUTE, "--config", str(file))
    assert told.startswith(str(file))
    assert sentence in told


def test_an_unknown_key_of_the_security(tmp_path: Path, refused_here: Callable[..., str]) -> None:
    file = tmp_path / "relay.toml"
    file.write_text("[to]\nurl = 'kafka://h:1'\nsecurity = {user = 'relay'}")
    told = refused_here(*ROUTE, "--config", str(file))
    assert told == "The key of [to.security] 'user' is unknown: did you mean 'username'?"


@pytest.mark.parametrize(
    ("missing", "to", "sentence"),
    [
        ("aiokafka", "kafka://h:1", "Sending to kafka:// needs what is not installed: {}[kafka]'."),
        ("nats", "nats://h:1", "Sending to nats:// needs what is not installed: {}[nats]'."),
        ("typer", "nats://h:1", "The command line needs typer: {}[cli]'."),
    ],
)
def test_a_missing_extra(missing: str, to: str, sentence: str) -> None:
    assert refused("--to", to, *ROUTE, code=1, command=without(missing)) == sentence.format(INSTALL)


def test_no_view_without_rich() -> None:
    told = refused(*TO, *ROUTE, "--progress", code=1, command=without("rich"))
    assert told == "The live view needs rich: pip install 'faststream-outbox[cli]', or give --no-progress."


def test_missing_drivers() -> None:
    told = refused(*TO, *ROUTE, code=1, command=without("asyncpg", "psycopg"))
    assert told == "Postgres is reached through asyncpg or psycopg: pip install 'faststream-outbox[asyncpg]'."
    told = refused(*TO, *ROUTE, code=1, command=without("psycopg"), dsn="postgresql+psycopg://h/d")
    assert told == "Postgres is reached through psycopg: pip install 'faststream-outbox[psycopg]'."


def without(*modules: str) -> tuple[str, ...]:
    """The program where some modules cannot be imported."""
    hidden = "".join(f"sys.modules[{module!r}] = None; " for module in modules)
    return sys.executable, "-c", f"import sys; {hidden}from faststream_outbox.cli.main import main; main()"


def test_no_server_answers() -> None:
    assert refused(*TO, *ROUTE, code=1).startswith('The outbox "outbox" cannot be read: ')


async def test_a_missing_table(outbox_postgres: Database) -> None:
    told = refused(*TO, *ROUTE, code=1, dsn=outbox_postgres.dsn)
    assert told.startswith('The outbox "outbox" is not in the database: create it by a migration')
    assert password_of(outbox_postgres) not in told


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
