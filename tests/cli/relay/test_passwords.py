"""Passwords and tokens are hidden in everything that the program prints, logs and serves, whatever they look like."""

import logging
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from faststream_outbox.cli.addresses import Address, show_address
from faststream_outbox.cli.relay.logs import StderrHandler
from faststream_outbox.cli.secrets import Secret, SecretError, hide, remember_options
from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.cli.programs import relaying, run
from tests.cli.relay.rows import publish

# Characters that end a user, a host or an address where they are not expected.
PASSWORD = "hun/t?e#r@2 secret"  # noqa: S105 - of nothing
PIECES = ("hun/", "hun%2F", "r@2", "r%402", "hunter2", "secret")
NOWHERE = "postgresql://relay@127.0.0.1:1/nowhere"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://relay:secret@host/vhost", "amqp://relay:***@host/vhost"),
        ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
        ("amqp://relay:sec@secret@host/", "amqp://relay:***@host/"),
        ("amqp://relay:sec/secret@host/", "amqp://relay:***@host/"),
        ("nats://secret@host:4222", "nats://***@host:4222"),
        ("nats://u:hun/secret@host:4222", "nats://***@host:4222"),
        ("tls://secret@host:4222", "tls://***@host:4222"),
        ("nats://a:secret@one:4222,b:secret@two:4222", "nats://***@two:4222"),
        ("nats://one:4222,two:4222", "nats://one:4222,two:4222"),
        ("redis://host:6379/0?password=secret&db=1", "redis://host:6379/0?password=***&db=1"),
        ("postgresql://host/shop?user=a&password=secret", "postgresql://host/shop?user=a&password=***"),
        ("kafka://host:9092?sasl_plain_password=secret", "kafka://host:9092?sasl_plain_password=***"),
        ("relay:secret@host", "***@host"),
        ("'relay:sec/ret@host:5432'", "'***@host:5432'"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert hide(f"Relaying orders to {url} now.") == f"Relaying orders to {shown} now."


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("amqp://relay:secret@host/vhost?heartbeat=5", "amqp://relay:***@host/vhost?heartbeat=5"),
        ("nats://a:secret@one:4222,b:secret@two:4222", "nats://***@one:4222,***@two:4222"),
        ("nats://secret@[::1]:4222", "nats://***@[::1]:4222"),
        ("rediss://:sec%2Fret@host:6379/0?password=secret", "rediss://:***@host:6379/0?password=***"),
        ("kafka://one:9092,two:9092?client_id=relay", "kafka://one:9092,two:9092?client_id=relay"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, shown: str) -> None:
    assert show_address(address) == shown
    assert hide(f"{address} is down; {address}") == f"{shown} is down; {shown}"


@pytest.mark.parametrize(
    "address",
    [
        "nats://u:hun/hunter2@host:4222",
        "nats://u:hun?hunter2@host:4222",
        "nats://u:hun?x=hunter2@host:4222",
        "nats://u:hun#hunter2@host:4222",
        "nats://u:hun hunter2@host:4222",
        "nats://u:hun,hunter2@host:4222",
        "nats://u:1,hunter2@host:4222",
        "nats://[hunter2@host:4222",
        "redis://u/hunter2@host",
        "redis://host:hunter2",
        "user:hunter2@host",
        "hunter2",
    ],
)
def test_an_address_that_cannot_be_taken_apart_is_not_shown(address: str) -> None:
    assert show_address(address) == "***"
    with pytest.raises(ValueError, match="percent-encoded") as refused:
        Address.parse(address)
    assert "hun" not in str(refused.value)


def test_options_that_are_secrets_are_hidden() -> None:
    remember_options({"client_id": "relay-one", "config": {"sasl.password": "swordfish", "list": [{"token": "t" * 9}]}})
    assert hide("relay-one swordfish ttttttttt") == "relay-one *** ***"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--to", f"nats://u:{PASSWORD}@127.0.0.1:1"),
        ("--to", "nats://u:hun/hunter2@127.0.0.1:1"),
        ("--to", "amqp://u:hun/hunter2@127.0.0.1:1/"),
        ("--to", "redis://u:hun/hunter2@127.0.0.1:1"),
        ("--to", "redis://127.0.0.1:hunter2"),
        ("--to", "u:hunter2@127.0.0.1"),
        ("--to", "redis://127.0.0.1:1", "u:hunter2@127.0.0.1"),
        ("--to", "redis://127.0.0.1:1", "--health", "u:hunter2@127.0.0.1"),
        ("--to", "redis://127.0.0.1:1", "--dsn", "u:hunter2@127.0.0.1"),
        ("--to", "redis://127.0.0.1:1", "--dsn", "postgresql://u:p@hunter2@127.0.0.1:1/shop"),
        ("--to", "redis://127.0.0.1:1", "--dsn", "postgresql://u/hunter2@127.0.0.1:1/shop"),
    ],
)
def test_a_hostile_address_is_refused_and_not_printed(arguments: tuple[str, ...]) -> None:
    done = run("relay", "--route", "orders=s", "--log-level", "debug", *arguments, OUTBOX_DSN=NOWHERE)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert [piece for piece in PIECES if piece in done.stdout + done.stderr] == []


@pytest.mark.parametrize("scheme", ["nats", "amqp", "redis"])
async def test_a_password_with_every_character_is_nowhere(
    outbox_postgres: Database, outbox: PostgresBackend, tmp_path: Path, scheme: str
) -> None:
    await publish(outbox, range(3))
    address = f"{scheme}://relay:{quote(PASSWORD, safe='')}@127.0.0.1:1"
    options = ("--to", address, "--route", "orders=s", "--log-level", "debug", "--progress-interval", "0.05")
    with relaying(*options, folder=tmp_path, OUTBOX_DSN=outbox_postgres.dsn) as program:
        await program.wait_for_line("relay_paused")
        _, status = await program.get("/status")
        assert status["to"].endswith("***@127.0.0.1:1")
        _, ready = await program.get("/health/ready")
        await program.stop()
    assert [piece for piece in PIECES if piece in f"{program.output}{status}{ready}"] == []


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("file:{}/none", "{}/none cannot be read: No such file or directory."),
        ("file:{}/empty", "file:{}/empty is empty, where a password should be."),
        ("command:no-such-program --secret hunter2", "The command no-such-program cannot be run: "),
        ("command:sh -c 'echo hunter2; exit 3'", "The command sh ended with 3; run it by hand to see why."),
        ("command:sh -c 'hunter2", "The command sh cannot be run: ValueError."),
        ("command:true", "the command true is empty, where a password should be."),
    ],
)
def test_a_password_that_cannot_be_read(tmp_path: Path, source: str, error: str) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(SecretError) as raised:
        Secret(source.format(tmp_path)).read()
    assert str(raised.value).startswith(error.format(tmp_path))
    assert "hunter2" not in str(raised.value)


def test_a_password_is_read_again_and_hidden_from_then_on(tmp_path: Path) -> None:
    file = tmp_path / "password"
    sources = Secret(f"file:{file}"), Secret(f"command:cat {file}")
    for password in ("first-of-passwords", "second-of-passwords"):
        file.write_text(f"{password}\n")
        assert {each.read() for each in sources} == {password}
        assert hide(f"refused: {password}") == "refused: ***"
        assert password not in repr(sources)


def test_what_a_library_cannot_format_is_reported_without_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    StderrHandler().handle(logging.makeLogRecord({"name": "client", "msg": "%d", "args": ("nats://u:hunter2@host",)}))
    shown = capsys.readouterr().err
    assert shown.startswith("A log record of client cannot be written: TypeError at line ")
    assert "hunter2" not in shown


def test_a_traceback_of_the_program_shows_no_secrets() -> None:
    fail = "commands.app = lambda **_: 1 / int('amqp://u:hunter2@h')"
    code = f"from faststream_outbox.cli import main, commands; {fail}; main()"
    done = run(command=(sys.executable, "-c", code))
    assert "ValueError: invalid literal for int() with base 10: 'amqp://u:***@h'" in done.stderr
    assert done.stderr.count("hunter2") == 0
