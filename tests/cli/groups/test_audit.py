"""`audit list`: what operators did."""

from collections.abc import Callable

from tests.cli.outbox import Done, Outbox

Operate = Callable[..., Done]


def test_acts_are_listed_the_newest_first(outbox: Outbox, operate: Operate) -> None:
    assert operate("audit", "list").out == "Nothing was done.\n"
    for reason in ("first", "second"):
        operate("dlq", "purge", outbox.dead_letter(), "--reason", reason, "--by", "kim")
    entries = operate("audit", "list", "-o", "json").json
    assert [(each["action"], each["by"], each["reason"], each["count"]) for each in entries] == [
        ("purge", "kim", "second", 1),
        ("purge", "kim", "first", 1),
    ]
    assert operate("audit", "list", "--by", "jo", "-o", "json").json == []
    assert len(operate("audit", "list", "--action", "purge", "--since", "1h", "-o", "jsonl").lines) == 2
    assert "second" in operate("audit", "list").out
    last = operate("audit", "list", "--limit", 1)
    assert "There may be more: raise --limit, or go on with\n--after " in last.err
