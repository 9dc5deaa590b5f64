"""`dlq`: dead letters are shown and acted on."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.outbox import Done, Outbox

Operate = Callable[..., Done]


def test_a_dead_letter_is_shown_with_its_body_and_its_exception(outbox: Outbox, operate: Operate) -> None:
    letter = outbox.dead_letter({"order": 7, "name": "Zoë"}, entity_key="k1")
    shown = operate("dlq", "show", letter)
    assert shown.code == 0
    assert '"order": 7' in shown.out
    assert "ValueError: no such order" in shown.out
    assert operate("dlq", "show", letter, "-o", "json").json["body"]["data"] == {"order": 7, "name": "Zoë"}
    assert json.loads(operate("dlq", "show", letter, "--raw").out) == {"order": 7, "name": "Zoë"}
    missing = operate("dlq", "show", letter + 1)
    assert missing.code == 1
    assert missing.err.startswith(f"Error: There is no dead letter {letter + 1}: ")


def test_one_dead_letter_that_is_named_is_purged_at_once(outbox: Outbox, operate: Operate) -> None:
    first, second = outbox.dead_letter(), outbox.dead_letter()
    done = operate("dlq", "purge", first, "--reason", "a test order", "--by", "kim")
    assert (done.code, done.out) == (0, "Purged 1 dead letter.\n")
    assert outbox.run("SELECT id FROM outbox_dlq") == [(second,)]
    assert outbox.audit() == [("purge", "kim", "a test order", 1)]
    again = operate("dlq", "purge", first, "--reason", "a test order")
    gone = f"Error: There is no dead letter {first}: it was replayed or purged, or never there.\n"
    assert (again.code, again.err) == (1, gone)


def test_a_purge_of_several_is_a_dry_run_until_yes(outbox: Outbox, operate: Operate) -> None:
    ids = [outbox.dead_letter(number, queue="mail") for number in range(3)]
    other = outbox.dead_letter(queue="orders")
    dry = operate("dlq", "purge", "--queue", "mail", "--reason", "old")
    assert dry.code == 0
    assert dry.out.startswith("Would purge 3 dead letters. Nothing was changed.\n")
    assert dry.err == "Give --yes to purge them.\n"
    assert outbox.one("SELECT count(*) FROM outbox_dlq") == 4
    assert outbox.audit() == []
    as_json = operate("dlq", "purge", "--queue", "mail", "--reason", "old", "-o", "json").json
    assert (as_json["dry_run"], as_json["count"]) == (True, {"number": 3, "capped": False})
    assert sorted(each["id"] for each in as_json["sample"]) == ids
    done = operate("dlq", "purge", "--queue", "mail", "--reason", "old", "--yes", "-o", "json")
    assert (done.code, done.json["done"], done.json["skipped"]) == (0, 3, {})
    assert outbox.run("SELECT id FROM outbox_dlq") == [(other,)]
    assert outbox.one("SELECT id FROM outbox_audit") == done.json["audit_id"]


def test_rows_that_are_gone_are_named_and_the_exit_code_says_so(outbox: Outbox, operate: Operate) -> None:
    letter = outbox.dead_letter()
    done = operate("dlq", "purge", letter, letter + 1, "--reason", "old", "--yes")
    assert (done.code, done.out) == (1, "Purged 1 dead letter.\n")
    assert f"  {letter + 1}: it is gone" in done.err


def test_dead_letters_are_listed_and_grouped(outbox: Outbox, operate: Operate) -> None:
    ids = [outbox.dead_letter(number) for number in range(2)]
    other = outbox.dead_letter(queue="mail", failure_reason="rejected", last_exception=None)
    assert sorted(each["id"] for each in operate("dlq", "list", "-o", "json").json) == [*ids, other]
    rejected = operate("dlq", "list", "--failure-reason", "rejected", "-o", "jsonl")
    assert [each["id"] for each in rejected.lines] == [other]
    failed = operate("dlq", "list", "--exception-type", "ValueError", "--failed-after", "1h", "-o", "jsonl")
    assert sorted(each["id"] for each in failed.lines) == ids
    groups = operate("dlq", "groups", "-o", "json").json
    found = {(each["queue"], each["exception_type"]): each["count"]["number"] for each in groups}
    assert found == {("orders", "ValueError"): 2, ("mail", None): 1}
    assert "ValueError" in operate("dlq", "groups").out
    assert operate("dlq", "list", "--queue", "none").out == "No dead letters.\n"


def test_a_list_has_exceptions_without_their_tracebacks(outbox: Outbox, operate: Operate) -> None:
    trace = 'Traceback (most recent call last):\n  File "mail.py", line 1, in send'
    letter = outbox.dead_letter(last_exception=f"ValueError: no\nsuch address\n\n{trace}")
    [_, line] = operate("dlq", "list").out.splitlines()
    assert line.endswith("  ValueError: no such address")
    assert trace in operate("dlq", "show", letter).out


def test_dead_letters_are_replayed_before_what_waits_of_their_key(outbox: Outbox, operate: Operate) -> None:
    waiting = outbox.publish(2, key="k1")
    letters = [outbox.dead_letter(n, entity_key="k1", original_id=-n) for n in (2, 1)]
    dry = operate("dlq", "replay", *letters, "--reason", "mended")
    assert dry.out.startswith("Would replay 2 dead letters. Nothing was changed.\n")
    done = operate("dlq", "replay", *letters, "--reason", "mended", "--rate", 1000, "--yes")
    assert (done.code, done.out) == (0, "Replayed 2 dead letters.\n")
    assert outbox.run("SELECT id FROM outbox WHERE entity_key = 'k1' ORDER BY id") == [(-2,), (-1,), (waiting,)]
    assert outbox.one("SELECT count(*) FROM outbox_dlq") == 0
    assert [each[0] for each in outbox.audit()] == ["replay"]


def test_a_dead_letter_is_edited_and_replayed(outbox: Outbox, operate: Operate, tmp_path: Path) -> None:
    letter = outbox.dead_letter({"amount": -1}, original_id=-1)
    edit = ("dlq", "edit", letter, "--reason", "a wrong amount")
    assert operate(*edit).err.startswith("Error: Nothing is changed: give --body or --header")
    assert operate(*edit, "--body", "{").err.startswith("Error: --body: this is not JSON, and the content type is ")
    assert outbox.one("SELECT count(*) FROM outbox") == 0
    (tmp_path / "body.json").write_text('{"amount": 12}')
    done = operate(*edit, "--body", f"@{tmp_path / 'body.json'}", "--header", "fixed=yes")
    assert (done.code, done.out) == (0, "Replayed 1 dead letter.\n")
    [(payload, headers)] = outbox.run("SELECT payload, headers FROM outbox WHERE id = -1")
    assert json.loads(payload) == {"amount": 12}
    assert headers["fixed"] == "yes"
    assert operate(*edit, "--body", "1").code == 1


def test_dead_letters_are_exported_as_lines_of_json(outbox: Outbox, operate: Operate) -> None:
    ids = [outbox.dead_letter({"n": number}) for number in range(3)]
    assert operate("dlq", "export").err.startswith("Error: No rows are chosen: ")
    done = operate("dlq", "export", "--all")
    assert [line["id"] for line in done.lines] == ids
    assert json.loads(done.lines[1]["payload_text"]) == {"n": 1}
    assert done.err == "Exported 3 dead letters.\n"
    assert [line["id"] for line in operate("dlq", "export", ids[1]).lines] == [ids[1]]
    assert outbox.one("SELECT count(*) FROM outbox_dlq") == 3
