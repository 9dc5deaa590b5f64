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


def test_a_dry_run_counts_the_rows_that_are_there_and_names_the_others(outbox: Outbox, operate: Operate) -> None:
    letters = [outbox.dead_letter(number) for number in range(12)]
    dry = operate("dlq", "replay", 901, *letters, 902, "--reason", "x")
    assert dry.code == 0
    assert dry.out.startswith("Would replay 12 dead letters. Nothing was changed.\n")
    left_out, first, second, last = dry.err.splitlines()
    assert (left_out, last) == ("Would leave out 2 dead letters:", "Give --yes to replay them.")
    assert (first[:7], second[:7]) == ("  901: ", "  902: ")
    as_json = operate("dlq", "replay", 901, *letters, "--reason", "x", "-o", "json").json
    assert (as_json["count"]["number"], as_json["missing"]) == (12, [901])


def test_a_dry_run_for_rows_of_which_none_is_there_fails(outbox: Outbox, operate: Operate) -> None:
    outbox.publish(1)
    for command, noun in (("dlq", "dead letter"), ("messages", "message")):
        act = {"dlq": "replay", "messages": "discard"}[command]
        dry = operate(command, act, 999, 998, "--reason", "x")
        assert (dry.code, dry.out) == (1, f"No {noun} matches: there is nothing to {act}.\n")
        assert dry.err.splitlines()[0] == f"Would leave out 2 {noun}s:"
        assert "--yes" not in dry.err


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
