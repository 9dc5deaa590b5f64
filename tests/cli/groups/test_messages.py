"""`messages`: what waits is listed, found, watched and acted on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.outbox import HOUR, Done, Outbox
from tests.cli.programs import TIMEOUT, running
from tests.waiting import until

Operate = Callable[..., Done]


@pytest.fixture
def messages(outbox: Outbox) -> list[int]:
    """Five messages: two of orders without a key, one that retries, one that waits, one of another queue."""
    ids = [outbox.publish({"n": n}, headers={"tenant": "a" if n else "b"}, correlation_id=f"c{n}") for n in range(2)]
    ids.append(outbox.publish({"n": 2}, key="k1"))
    outbox.run(
        "UPDATE outbox SET attempts_count = 2, next_attempt_at = now() + interval '1 hour' WHERE id = %s", ids[2]
    )
    ids.append(outbox.publish({"n": 3}, queue="mail", activate_in=HOUR))
    ids.append(outbox.publish("plain text", queue="mail"))
    return ids


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), [0, 1, 2, 3, 4]),
        (("--queue", "mail"), [3, 4]),
        (("--key", "k1"), [2]),
        (("--state", "retrying"), [2]),
        (("--state", "delayed"), [3]),
        (("--correlation-id", "c1"), [1]),
        (("--header", "tenant=b"), [0]),
        (("--published-before", "1h"), []),
        (("--published-after", "1h"), [0, 1, 2, 3, 4]),
    ],
    ids=str,
)
def test_messages_are_listed_by_what_they_have(
    operate: Operate, messages: list[int], options: tuple[str, ...], found: list[int]
) -> None:
    done = operate("messages", "list", *options, "-o", "jsonl")
    assert done.code == 0
    assert sorted(line["id"] for line in done.lines) == [messages[at] for at in found]


def test_pages_follow_each_other(operate: Operate, messages: list[int]) -> None:
    seen, options = list[int](), tuple[str, ...]()
    for _ in range(3):
        done = operate("messages", "list", "--limit", 2, "-o", "json", *options)
        seen += [each["id"] for each in done.json]
        if "--after" not in done.err:
            break
        options = ("--after", done.err.rpartition("--after ")[2].strip(" .\n'"))
    assert sorted(seen) == messages


def test_a_list_in_a_pipe_is_aligned_and_plain(operate: Operate, messages: list[int]) -> None:
    lines = operate("messages", "list", "--queue", "orders").out.splitlines()
    assert lines[0].split() == [
        "id",
        "queue",
        "key",
        "state",
        "attempts",
        "published",
        "due",
        "holder",
        "last",
        "failure",
    ]
    assert len(lines) == 4
    at = lines[0].index("state")
    assert sorted(line[at:].split()[0] for line in lines[1:]) == ["ready", "ready", "retrying"]
    assert "\x1b" not in "".join(lines)
    assert str(messages[2]) in "".join(lines)


def test_a_message_is_shown_decoded_or_raw(operate: Operate, messages: list[int]) -> None:
    shown = operate("messages", "show", messages[0])
    assert '{\n  "n": 0\n}' in shown.out
    assert '"tenant": "b"' in shown.out
    as_json = operate("messages", "show", messages[0], "-o", "json").json
    assert (as_json["state"], as_json["body"]["data"], as_json["correlation_id"]) == ("ready", {"n": 0}, "c0")
    assert operate("messages", "show", messages[4], "--raw").out == "plain text"
    gone = "Error: There is no message 999999: it was handled, or it is a dead letter (dlq list).\n"
    for command in (("show", 999_999), ("deliver-now", 999_999, "--reason", "a test")):
        done = operate("messages", *command)
        assert (done.code, done.err) == (1, gone)


def test_an_id_that_is_no_number_is_refused_in_plain_words(operate: Operate) -> None:
    done = operate("messages", "show", "abc")
    assert done.code == 2
    assert "whole number" in done.err or "not a valid int" in done.err


def test_a_message_behind_another_of_its_key_says_so(outbox: Outbox, operate: Operate, messages: list[int]) -> None:
    behind = outbox.publish({"n": 5}, key="k1")
    assert [line["id"] for line in operate("messages", "list", "--state", "blocked", "-o", "jsonl").lines] == [behind]
    shown = operate("messages", "show", behind).out
    assert f"blocked by  message {messages[2]}, the first of its key, retrying: failed 2 times\n" in shown
    assert "blocked by" not in operate("messages", "show", messages[2]).out


def test_a_correlation_id_is_found_in_both_tables(outbox: Outbox, operate: Operate, messages: list[int]) -> None:
    headers = json.dumps({"correlation_id": "c1", "content-type": "application/json"})
    letter = outbox.dead_letter({"n": 9}, headers=headers)
    found = operate("messages", "find", "--correlation-id", "c1", "-o", "json")
    assert [each["id"] for each in found.json["messages"]] == [messages[1]]
    assert [each["id"] for each in found.json["dead_letters"]] == [letter]
    assert operate("messages", "find", "--correlation-id", "none").code == 1


async def test_new_messages_are_shown_as_they_come(outbox: Outbox, tmp_path: Path) -> None:
    with running("messages", "tail", "orders", "-o", "jsonl", output=tmp_path / "tail", OUTBOX_DSN=outbox.dsn) as tail:
        published = list[int]()

        async def look() -> list[int]:
            published.append(await outbox.publishing({"n": len(published)}))
            await outbox.publishing("other", queue="mail")
            return [json.loads(line)["id"] for line in tail.output.splitlines()]

        seen = await until(look, lambda ids: len(ids) >= 2, seconds=TIMEOUT)
        assert set(seen) <= set(published)
        assert await tail.interrupt() == 0
