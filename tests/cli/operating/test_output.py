"""The same list in a pipe, in a terminal, and as JSON."""

import json
import re
import subprocess
from datetime import UTC, datetime, timedelta
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from faststream_outbox.cli.operating.views import QUEUE, Column, Rows, column, number
from faststream_outbox.operations import Count
from faststream_outbox.storage.nodes import Node
from tests.cli.groups.test_nodes import live, register
from tests.cli.outbox import HOUR, Outbox
from tests.cli.programs import COMMAND, TIMEOUT, environment, run
from tests.cli.terminals import terminal
from tests.waiting import until

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")
PURGE = ("dlq", "purge", "--all", "--reason", "x")


def test_a_pipe_gets_plain_text(outbox: Outbox) -> None:
    outbox.dead_letter()
    done = run(*PURGE, OUTBOX_DSN=outbox.dsn)
    assert (done.returncode, done.stderr) == (0, "Give --yes to purge it.\n")
    lines = done.stdout.splitlines()
    assert lines[:3] == ["Would purge 1 dead letter. Nothing was changed.", "", "For example:"]
    assert re.fullmatch(r"id  queue   key  reason +attempts  failed +exception type  exception", lines[3])
    assert "\x1b" not in done.stdout
    assert "ValueError: no such order" in lines[4]


async def test_a_terminal_gets_a_table_in_colour(outbox: Outbox) -> None:
    outbox.dead_letter(last_exception="\x1b[2Jcleared")
    async with terminal(*PURGE, OUTBOX_DSN=outbox.dsn) as screen:
        await screen.wait_for("Give --yes to purge it.")
        assert COLOUR.search(screen.raw)
        assert "───" in screen.text
        # What a message says must not reach the terminal as a command.
        assert "\\x1b[2Jcleared" in screen.text


def test_a_narrow_table_breaks_texts_between_words_and_leaves_out_empty_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "34")
    item = SimpleNamespace(reason="retry_terminal", key=None, text="two words and some more", code=123)
    console = Console(width=34, file=StringIO())
    columns = [column("reason"), column("key"), column("text"), number("code")]
    console.print(Rows(columns, [item]).as_rich(), crop=False)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines[0].split() == ["reason", "text", "code"]
    assert [len(line) <= 34 for line in lines] == [True] * len(lines)
    assert [line.split() for line in lines[2:]] == [
        ["retry_terminal", "two", "words", "123"],
        ["and", "some"],
        ["more"],
    ]


def test_a_time_is_relative_and_stays_in_one_line_where_there_is_little_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "32")
    item = SimpleNamespace(at=datetime.now(UTC) - timedelta(hours=3), first="some words", second="other words")
    console = Console(width=32, file=StringIO())
    console.print(Rows([column("at"), column("first"), column("second")], [item]).as_rich())
    assert "3.0 h ago" in console.file.getvalue()  # type: ignore[attr-defined]


def lines_of(monkeypatch: pytest.MonkeyPatch, width: int, columns: list[Column], *items: object) -> list[str]:
    """Return the lines of a table in a terminal of this width."""
    monkeypatch.setenv("COLUMNS", str(width))
    console = Console(width=width, file=StringIO())
    console.print(Rows(columns, items).as_rich(), crop=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_heads_are_broken_between_words_before_texts_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    item = SimpleNamespace(queue="accounts", blocked_keys=Count(1), text="two words")
    lines = lines_of(monkeypatch, 28, [QUEUE, number("blocked keys"), column("text")], item)
    assert [line.split() for line in lines if "─" not in line] == [
        ["blocked"],
        ["queue", "keys", "text"],
        ["accounts", "1", "two", "words"],
    ]


def test_names_stay_whole_and_texts_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    item = SimpleNamespace(queue="accounts", text="ConnectionRefusedError")
    _, _, first, second, third = lines_of(monkeypatch, 18, [QUEUE, column("text")], item)
    assert first.split() == ["accounts", "Connecti"]
    assert second.split() + third.split() == ["onRefuse", "dError"]


def test_a_name_that_takes_half_of_the_terminal_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    item = SimpleNamespace(queue="a" * 30, text="words")
    assert max(map(len, lines_of(monkeypatch, 30, [QUEUE, column("text")], item))) <= 30


def test_figures_that_are_zero_in_all_rows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [QUEUE, number("ready"), number("dead", rare=True), number("expired", rare=True)]
    items = [
        SimpleNamespace(queue=name, ready=Count(0), dead=Count(0), expired=Count(n)) for n, name in enumerate("ab")
    ]
    assert lines_of(monkeypatch, 80, columns, *items)[0].split() == ["queue", "ready", "expired"]


@pytest.mark.parametrize(("width", "left_out"), [(40, []), (26, ["second"]), (17, ["first", "second"])])
def test_columns_that_are_spare_are_left_out_for_want_of_room(
    monkeypatch: pytest.MonkeyPatch, width: int, left_out: list[str]
) -> None:
    item = SimpleNamespace(queue="accounts", first="1" * 8, second="2" * 8, last="whole")
    columns = [QUEUE, column("first", spare=2), column("second", spare=1), column("last")]
    lines = lines_of(monkeypatch, width, columns, item)
    assert lines[0].split() == [each.name for each in columns if each.name not in left_out]
    assert " ".join(lines[3:]) == (f"Left out, for want of room: {', '.join(left_out)}." if left_out else "")


async def test_a_terminal_of_80_columns_shows_all_names_and_figures_whole(outbox: Outbox) -> None:
    for queue in ("accounts", "payments-europe"):
        outbox.dead_letter(queue=queue, last_exception="LookupError: there is no account of this number")
        await outbox.publishing(1, queue=queue, key="k1", activate_in=HOUR)
    node = Node()
    register(outbox, node, "accounts", "payments-europe")
    live(outbox, node)
    for command, names in (
        (("stats",), ["payments-europe", "scheduled", "keys", "dead"]),
        (("nodes", "list"), [node.name, "accounts,", "payments-europe"]),
        (("dlq", "list"), ["payments-europe", "retry_terminal", "LookupError:"]),
    ):
        async with terminal(*command, columns=80, OUTBOX_DSN=outbox.dsn) as screen:
            await until(lambda: screen.ended, seconds=TIMEOUT)
            words = screen.text.split()
            assert [name for name in names if name not in words] == [], screen.text
            assert "…" not in screen.text
            assert max(map(len, screen.text.splitlines())) <= 80


async def test_no_color_is_obeyed(outbox: Outbox) -> None:
    outbox.dead_letter()
    async with terminal(*PURGE, OUTBOX_DSN=outbox.dsn, NO_COLOR="1") as screen:
        await screen.wait_for("Give --yes to purge it.")
        assert not COLOUR.search(screen.raw)


def test_a_reader_that_has_seen_enough_is_no_error(outbox: Outbox) -> None:
    for each in range(10):
        outbox.dead_letter({"n": each})
    with subprocess.Popen(
        [*COMMAND, "dlq", "purge", *map(str, range(1, 11)), "--reason", "x", "-o", "json"],
        env=environment(OUTBOX_DSN=outbox.dsn),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as dump:
        assert dump.stdout is not None
        dump.stdout.close()
        assert dump.stderr is not None
        errors = dump.stderr.read().decode()
    assert (dump.returncode, errors) == (0, "")


def test_help_names_the_options_and_needs_no_database() -> None:
    done = run("dlq", "purge", "--help", COLUMNS="200")
    assert done.returncode == 0
    for option in ("--reason", "--yes", "--queue", "--failed-after", "--dsn", "--app", "--output", "--all"):
        assert option in done.stdout


def test_json_has_letters_of_every_language(outbox: Outbox) -> None:
    letter = outbox.dead_letter({"name": "Zoë 東京"})
    done = run("dlq", "show", str(letter), "-o", "jsonl", OUTBOX_DSN=outbox.dsn, PYTHONIOENCODING="utf-8")
    assert "Zoë 東京" in done.stdout
    [line] = done.stdout.splitlines()
    assert json.loads(line)["body"]["data"] == {"name": "Zoë 東京"}
