"""Which rows an act is for must be said, and why."""

from collections.abc import Callable

import pytest

from tests.cli.outbox import Done, Outbox

Operate = Callable[..., Done]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--reason", "x"), "No rows are chosen: give ids, or options such as --queue, or --all."),
        (("1", "--queue", "q", "--reason", "x"), "Rows are chosen by ids or by options, not by both: leave out one."),
        (("1", "--all", "--reason", "x"), "Rows are chosen by ids or by options, not by both: leave out one."),
        (
            ("--queue", "q", "--all", "--reason", "x"),
            "--all is for all rows: leave it out, or the options that choose some.",
        ),
        (("1",), "Missing option '--reason' / '-r'. See faststream-outbox dlq purge --help."),
        (("1", "--reason", ""), "reason"),
        (("one", "--reason", "x"), "Invalid value for 'ids': "),
        (("--failed-after", "soon", "--reason", "x"), "'soon' is not a time; write 2026-05-01T12:00Z, or a duration"),
        (("--failure-reason", "bad", "--reason", "x"), "reason is one of "),
    ],
)
def test_a_wrong_order_is_one_line_and_changes_nothing(
    outbox: Outbox, operate: Operate, arguments: tuple[str, ...], sentence: str
) -> None:
    outbox.dead_letter(id=1)
    done = operate("dlq", "purge", *arguments)
    assert done.code == 2
    [line] = done.err.splitlines()
    assert line.startswith(f"Error: {sentence}")
    assert outbox.one("SELECT count(*) FROM outbox_dlq") == 1


def test_all_rows_need_all(outbox: Outbox, operate: Operate) -> None:
    for number in range(3):
        outbox.dead_letter(number)
    assert "Would purge 3 dead letters." in operate("dlq", "purge", "--all", "--reason", "x").out
    assert operate("dlq", "purge", "--all", "--reason", "x", "--yes").out == "Purged 3 dead letters.\n"
    assert operate("dlq", "purge", "--all", "--reason", "x").out == (
        "No dead letter matches: there is nothing to purge.\n"
    )


@pytest.mark.parametrize(("since", "found"), [("1h", 1), ("3h", 2), ("2026-01-01", 2), ("2126-01-01T00:00Z", 0)])
def test_a_time_may_be_a_duration_ago(outbox: Outbox, operate: Operate, since: str, found: int) -> None:
    for hours in (0, 2):
        letter = outbox.dead_letter()
        outbox.run("UPDATE outbox_dlq SET failed_at = now() - make_interval(hours => %s) WHERE id = %s", hours, letter)
    dry = operate("dlq", "purge", "--failed-after", since, "--reason", "x", "-o", "json")
    assert dry.json["count"]["number"] == found


def test_without_an_audit_table_it_is_said_that_nothing_is_kept(outbox: Outbox, operate: Operate) -> None:
    outbox.run("DROP TABLE outbox_audit")
    done = operate("dlq", "purge", outbox.dead_letter(), "--reason", "x")
    assert done.code == 0
    assert "There is no audit table" in done.err
