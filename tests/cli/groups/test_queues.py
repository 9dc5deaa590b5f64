"""`queues`: counts, and pausing."""

import re
from collections.abc import Callable
from itertools import pairwise

from tests.cli.outbox import HOUR, Done, Outbox

Operate = Callable[..., Done]


def test_queues_are_listed_with_their_counts(outbox: Outbox, operate: Operate) -> None:
    for number in range(3):
        outbox.publish(number)
    outbox.publish(1, queue="mail", activate_in=HOUR)
    outbox.dead_letter(queue="mail")
    found = {each["queue"]: each for each in operate("queues", "list", "-o", "json").json}
    assert found["orders"]["ready"] == {"number": 3, "capped": False}
    assert (found["mail"]["scheduled"]["number"], found["mail"]["dead"]["number"]) == (1, 1)
    head, *rows = operate("queues", "list").out.splitlines()
    assert head.split()[:3] == ["queue", "ready", "scheduled"]
    assert [row.split()[:3] for row in rows] == [["mail", "0", "1"], ["orders", "3", "0"]]


def test_messages_whose_lease_ran_out_are_listed_with_their_age(outbox: Outbox, operate: Operate) -> None:
    outbox.publish(1)
    outbox.run(
        "UPDATE outbox SET acquired_token = gen_random_uuid(), lease_expires_at = now() - interval '1 minute', "
        "acquired_at = now(), deliveries_count = 1, next_attempt_at = now() - interval '2 hours'"
    )
    for command in (("queues", "list"), ("top",)):
        lines = operate(*command).out.splitlines()
        head, row = next((head, row) for head, row in pairwise(lines) if row.startswith("orders"))
        names, values = re.split(" {2,}", head), re.split(" {2,}", row)
        found = dict(zip(names, values, strict=False))
        assert (found["ready"], found["expired"], found["oldest"]) == ("0", "1", "2.0 h")


def test_an_empty_outbox_is_said(outbox: Outbox, operate: Operate) -> None:
    assert outbox.one("SELECT count(*) FROM outbox") == 0
    assert operate("queues", "list").out == "The outbox is empty, and nothing is paused.\n"
    assert operate("queues", "list", "-o", "json").json == []


def test_a_queue_is_paused_and_resumed(outbox: Outbox, operate: Operate) -> None:
    paused = operate("queues", "pause", "orders", "--until", "2h", "--by", "ann", "--reason", "the shop moves")
    assert paused.code == 0
    assert paused.out.startswith("Paused the queue orders until 20")
    [found] = operate("queues", "list", "-o", "json").json
    assert (found["queue"], found["ready"]["number"]) == ("orders", 0)
    assert (found["paused"]["by"], found["paused"]["reason"]) == ("ann", "the shop moves")
    assert "by ann until 20" in operate("queues", "list").out
    assert outbox.one("SELECT until - now() BETWEEN interval '119 min' AND interval '2 h' FROM outbox_control")
    again = operate("queues", "pause", "orders", "--reason", "longer than that", "-o", "json").json
    assert (again["queue"], again["until"], again["done"]) == ("orders", None, True)
    resumed = operate("queues", "resume", "orders", "--reason", "the shop has moved")
    assert (resumed.code, resumed.out) == (0, "Resumed the queue orders.\n")
    assert outbox.one("SELECT count(*) FROM outbox_control") == 0
    assert [each[0] for each in outbox.audit()] == ["pause", "pause", "resume"]


def test_a_pause_of_a_queue_that_nobody_knows_asks_for_the_name(outbox: Outbox, operate: Operate) -> None:
    outbox.publish(1)
    assert "is the name right?" in operate("queues", "pause", "ordres", "--reason", "a test").err
    assert "is the name right?" not in operate("queues", "pause", "orders", "--reason", "a test").err


def test_a_queue_that_is_not_paused_cannot_be_resumed(operate: Operate) -> None:
    resumed = operate("queues", "resume", "orders", "--reason", "why not")
    assert (resumed.code, resumed.out) == (1, "Nothing was changed: the queue orders is not paused.\n")


def test_a_pause_needs_an_end_to_come_and_a_reason(operate: Operate) -> None:
    late = operate("queues", "pause", "orders", "--until", "2020-01-01", "--reason", "a test")
    assert (late.code, late.err.count("\n")) == (2, 1)
    assert "over already" in late.err
    assert operate("queues", "pause", "orders").code == 2


def test_a_pause_needs_the_control_table(outbox: Outbox, operate: Operate) -> None:
    outbox.run("DROP TABLE outbox_control")
    paused = operate("queues", "pause", "orders", "--reason", "a test")
    assert paused.code == 1
    assert "make_operations_tables" in paused.err
