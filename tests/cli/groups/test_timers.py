"""`timers`: listed, cancelled, fired."""

from collections.abc import Callable

from tests.cli.outbox import HOUR, Done, Outbox

Operate = Callable[..., Done]
REASON = ("--reason", "no longer wanted")


def test_timers_are_listed_cancelled_and_fired(outbox: Outbox, operate: Operate) -> None:
    for timer in ("a", "b"):
        outbox.publish(1, timer_id=timer, activate_in=HOUR)
    outbox.publish(2)
    assert sorted(each["timer_id"] for each in operate("timers", "list", "-o", "json").json) == ["a", "b"]
    assert [each["timer_id"] for each in operate("timers", "list", "--timer-id", "a", "-o", "jsonl").lines] == ["a"]
    assert operate("timers", "cancel", "orders", "a", *REASON).out == "Cancelled the timer a of orders.\n"
    assert outbox.run("SELECT timer_id FROM outbox WHERE timer_id IS NOT NULL") == [("b",)]
    assert operate("timers", "fire", "orders", "b", *REASON).out == "Fired the timer b of orders.\n"
    assert outbox.one("SELECT next_attempt_at <= now() FROM outbox WHERE timer_id = 'b'")
    assert [each[0] for each in outbox.audit()] == ["cancel_timer", "fire_timer"]
    assert operate("timers", "cancel", "orders", "a", *REASON).code == 1
