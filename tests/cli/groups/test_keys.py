"""`keys`: keys that wait are listed, shown and put right."""

from collections.abc import Callable

import pytest

from tests.cli.outbox import Done, Outbox

Operate = Callable[..., Done]
REASON = ("--reason", "the address was wrong")


@pytest.fixture
def retrying(outbox: Outbox) -> int:
    """A key whose first message retries in an hour, with another behind it; return the id of the first."""
    first = outbox.publish({"n": 1}, key="k1")
    outbox.publish({"n": 2}, key="k1")
    outbox.run(
        "UPDATE outbox SET attempts_count = 2, first_attempt_at = now(), last_attempt_at = now(), "
        "next_attempt_at = now() + interval '1 hour' WHERE id = %s",
        first,
    )
    return first


def test_keys_that_wait_are_listed_and_shown(operate: Operate, retrying: int) -> None:
    [key] = operate("keys", "list", "-o", "json").json
    assert (key["queue"], key["key"], key["state"], key["head_id"], key["waiting"]) == (
        "orders",
        "k1",
        "retrying",
        retrying,
        1,
    )
    assert operate("keys", "list", "--state", "parked").out == "No key waits.\n"
    assert operate("keys", "list", "--state", "lost").code == 2
    shown = operate("keys", "show", "orders", "k1", "-o", "json").json
    assert [each["body"]["data"] for each in shown["messages"]] == [{"n": 1}, {"n": 2}]
    assert "retrying" in operate("keys", "show", "orders", "k1").out
    assert operate("keys", "show", "orders", "k2").code == 1


@pytest.mark.usefixtures("retrying")
def test_a_key_is_parked_released_and_retried(outbox: Outbox, operate: Operate) -> None:
    assert operate("keys", "park", "orders", "k1", *REASON).code == 0
    assert operate("keys", "list", "-o", "json").json[0]["state"] == "parked"
    assert operate("keys", "release", "orders", "k1", *REASON).code == 0
    assert operate("keys", "list", "-o", "json").json[0]["state"] == "retrying"
    assert operate("keys", "retry", "orders", "k1", *REASON).code == 0
    assert operate("keys", "list", "-o", "json").json == []
    assert [each[0] for each in outbox.audit()] == ["park_key", "release_key", "retry_key"]


def test_the_first_message_of_a_key_is_skipped(outbox: Outbox, operate: Operate, retrying: int) -> None:
    assert operate("keys", "skip", "orders", "k1", *REASON).code == 0
    assert outbox.run("SELECT original_id, failure_reason FROM outbox_dlq") == [(retrying, "rejected")]
    assert outbox.one("SELECT count(*) FROM outbox") == 1


def test_dead_letters_of_a_key_that_was_skipped_are_found_by_what_failed(outbox: Outbox, operate: Operate) -> None:
    outbox.publish(1, key="k1")
    cause = '{"outbox-parked": {"exception": "ValueError: poison order"}}'
    outbox.run("UPDATE outbox SET next_attempt_at = now() + interval '1 hour', headers = %s::jsonb", cause)
    operate("keys", "skip", "orders", "k1", "--reason", "cancelled")
    [found] = operate("dlq", "list", "--exception-type", "ValueError", "-o", "json").json
    assert found["exception"] == "cancelled\n\nlast failure: ValueError: poison order"
    assert [each["exception_type"] for each in operate("dlq", "groups", "-o", "json").json] == ["ValueError"]


def test_a_message_that_is_not_the_first_is_not_skipped(outbox: Outbox, operate: Operate, retrying: int) -> None:
    done = operate("keys", "skip", "orders", "k1", "--head", str(retrying + 1), *REASON)
    assert (done.code, "another message is first now" in done.out) == (1, True)
    assert outbox.one("SELECT count(*) FROM outbox") == 2
    assert "is a dead letter now" in operate("keys", "skip", "orders", "k1", "--head", str(retrying), *REASON).out


@pytest.mark.usefixtures("retrying")
def test_skipping_says_that_a_message_is_deleted_without_a_table_of_dead_letters(
    outbox: Outbox, operate: Operate
) -> None:
    outbox.run("DROP TABLE outbox_dlq")
    assert "deleted for good" in operate("keys", "skip", "orders", "k1", *REASON).out


def test_a_key_without_messages_is_held_and_released(outbox: Outbox, operate: Operate) -> None:
    assert operate("keys", "hold", "orders", "k9", *REASON).code == 0
    outbox.publish(1, key="k9")
    [key] = operate("keys", "list", "-o", "json").json
    assert (key["key"], key["state"]) == ("k9", "parked")
    assert operate("keys", "release", "orders", "k9", *REASON).code == 0
    assert operate("keys", "list", "-o", "json").json == []
    assert outbox.one("SELECT count(*) FROM outbox") == 1


ACTS = ("retry", "skip", "park", "release")


@pytest.mark.parametrize("act", ACTS)
def test_an_act_on_a_key_that_is_not_there_says_so(operate: Operate, act: str) -> None:
    done = operate("keys", act, "orders", "nobody", *REASON)
    assert (done.code, done.out) == (1, "Nothing was changed: no message of queue orders has the key nobody.\n")


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.usefixtures("retrying")
def test_an_act_on_a_key_that_is_being_handled_says_so(outbox: Outbox, operate: Operate, act: str) -> None:
    outbox.run(
        "UPDATE outbox SET acquired_token = gen_random_uuid(), acquired_at = now(), "
        "lease_expires_at = now() + interval '1 hour' WHERE id = (SELECT min(id) FROM outbox)"
    )
    done = operate("keys", act, "orders", "k1", *REASON)
    assert (done.code, done.out) == (1, "Nothing was changed: a process is handling its first message.\n")


@pytest.mark.usefixtures("retrying")
def test_an_act_that_a_key_needs_no_more_says_so(operate: Operate) -> None:
    released = operate("keys", "release", "orders", "k1", *REASON)
    assert released.out == "Nothing was changed: the key is neither parked nor held: its first message is retrying.\n"
    assert operate("keys", "park", "orders", "k1", *REASON).code == 0
    for act in ("park", "hold"):
        again = operate("keys", act, "orders", "k1", *REASON)
        assert (again.code, again.out) == (1, "Nothing was changed: the key is parked already.\n")
    as_json = operate("keys", "park", "orders", "k1", *REASON, "-o", "json").json
    assert (as_json["done"], as_json["why"]) == (False, "the key is parked already")


@pytest.mark.usefixtures("retrying")
def test_an_act_on_a_key_that_another_transaction_changes_says_so(outbox: Outbox, operate: Operate) -> None:
    outbox.run("BEGIN")
    outbox.run("SELECT FROM outbox FOR UPDATE")
    done = operate("keys", "skip", "orders", "k1", *REASON)
    outbox.run("ROLLBACK")
    assert (done.code, "another transaction was changing its first message" in done.out) == (1, True)
