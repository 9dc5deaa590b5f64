"""`doctor`: what is wrong, what mends it, and the exit code."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from faststream_outbox.embedded import Database
from tests.cli.outbox import Done, Outbox
from tests.cli.terminals import terminal

Command = Callable[..., Done]


def test_a_healthy_outbox(operate: Command) -> None:
    done = operate("doctor")
    assert (done.code, done.out) == (0, "Nothing is wrong.\n")
    assert operate("doctor", "-o", "json").json == []


def test_a_fault_is_named_and_the_printed_statements_mend_it(outbox: Outbox, operate: Command) -> None:
    outbox.run("DROP INDEX outbox_key_idx")
    done = operate("doctor")
    assert done.code == 1
    assert re.search(r"^(ERROR|WARNING)  .*outbox", done.out)
    assert "  why:  " in done.out
    assert "  cure: " in done.out
    assert {finding["severity"] for finding in operate("doctor", "-o", "jsonl").lines} <= {"error", "warning"}
    fix = operate("doctor", "--fix-sql")
    assert fix.code == 1
    with psycopg.connect(outbox.dsn, autocommit=True) as connection:
        for statement in filter(str.strip, re.sub(r"(?m)^--.*$", "", fix.out).split(";\n")):
            connection.execute(statement.encode())
    assert operate("doctor").out == "Nothing is wrong.\n"


def test_the_commands_of_a_cure_can_be_pasted(outbox: Outbox, command: Command) -> None:
    key, reason = "it's ada", "the card is new"
    outbox.run(
        "INSERT INTO outbox (queue, entity_key, payload, attempts_count, first_attempt_at, next_attempt_at) "
        "VALUES ('my orders', %s, '1', 9, now() - interval '1 day', now() + interval '1 day')",
        key,
    )
    done = command("doctor", "--table", "outbox", dsn=outbox.dsn)
    lines = [line for line in done.out.splitlines() if line.startswith("    ")]
    # Of retry and skip one is to be run: the other one is a comment for a shell.
    assert [shlex.split(line, comments=True)[1:3] for line in lines] == [["keys", "show"], ["keys", "retry"], []]
    assert shlex.split(lines.pop())[:5] == ["#", "or:", "faststream-outbox", "keys", "skip"]
    for line in lines:
        pasted = command(*(reason if word == "WHY" else word for word in shlex.split(line)[1:]), dsn=outbox.dsn)
        assert pasted.code == 0, pasted.err
    assert command("doctor", dsn=outbox.dsn).out == "Nothing is wrong.\n"


def test_a_key_that_is_held_on_purpose_is_no_fault_and_keeps_its_hold(operate: Command) -> None:
    operate("keys", "hold", "accounts", "H1", "--reason", "account merge", "--by", "ann")
    done = operate("doctor")
    assert done.code == 0
    assert done.out.startswith(
        "INFO  1 key of queue 'accounts' was stopped by an operator: 'H1' by ann (account merge)."
    )
    pasted = [shlex.split(line)[1:] for line in done.out.splitlines() if line.startswith("    ")]
    assert [words[:2] for words in pasted] == [["keys", "show"], ["keys", "release"]]
    assert all(operate(*words).code == 0 for words in pasted)
    assert operate("doctor").out == "Nothing is wrong.\n"


async def test_a_terminal_breaks_sentences_and_leaves_whole_what_can_be_pasted(outbox: Outbox) -> None:
    queue = "orders of " + "customers " * 20
    outbox.run(
        "INSERT INTO outbox (queue, entity_key, payload, next_attempt_at) VALUES (%s, 'ada', '1', 'infinity')", queue
    )
    async with terminal("doctor", OUTBOX_DSN=outbox.dsn) as screen:
        await screen.wait_for("# or: .* WHY")
    lines = [line.rstrip() for line in screen.text.splitlines()]
    assert sum(line.startswith("WARNING 1 key of queue") for line in lines) == 1
    assert sum(line.startswith("        customers") for line in lines) == 1, "beside the name, not below it"
    [retry] = [line for line in lines if line.startswith("    faststream-outbox keys retry")]
    assert shlex.split(retry) == ["faststream-outbox", "keys", "retry", queue, "ada", "--reason", "WHY"]


def test_missing_tables_and_a_missing_server_are_findings(command: Command, outbox_postgres: Database) -> None:
    missing = command("doctor", dsn=outbox_postgres.dsn)
    assert missing.code == 1
    assert missing.out.startswith("ERROR  ")
    assert "CREATE TABLE" in command("doctor", "--fix-sql").out
    away = command("doctor", "-o", "json", dsn="postgresql://shop:top-secret@127.0.0.1:1/shop")
    assert (away.code, [each["severity"] for each in away.json]) == (1, ["error"])
    assert "top-secret" not in away.out + away.err
    [finding] = away.json
    assert finding["what"].startswith("The database cannot be reached: ")
    assert "Error(" not in finding["what"]
    assert "--dsn (OUTBOX_DSN)" in finding["cure"]


def test_an_application_is_examined(
    outbox: Outbox, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"examined_{outbox.database.name}"
    (tmp_path / f"{name}.py").write_text(
        "import os\nfrom tests.cli.outbox import Outbox\nfrom faststream_outbox.embedded import Database\n"
        "broker = Outbox(Database(os.environ['SHOP_DATABASE'])).broker()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_DATABASE", outbox.dsn)
    assert command("doctor", "--app", f"{name}:broker").code == 0
    outbox.run("DROP INDEX outbox_key_idx")
    assert command("doctor", "--app", f"{name}:broker").code == 1


def test_a_kind_that_is_unknown(operate: Command) -> None:
    done = operate("doctor", "--as", "king")
    assert done.code == 2
    assert "king" in done.err
