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


def test_an_act_on_a_timer_says_why_it_did_nothing(outbox: Outbox, operate: Operate) -> None:
    for act in ("cancel", "fire"):
        missing = operate("timers", act, "orders", "a", *REASON)
        assert (missing.code, missing.out) == (1, "Nothing was changed: there is no timer a in queue orders.\n")
    outbox.publish(1, timer_id="a", key="k1")
    assert "it is due already" in operate("timers", "fire", "orders", "a", *REASON).out
    outbox.run("UPDATE outbox SET next_attempt_at = 'infinity'")
    assert "its key is parked" in operate("timers", "fire", "orders", "a", *REASON).out
    outbox.run(
        "UPDATE outbox SET next_attempt_at = now(), acquired_token = gen_random_uuid(), acquired_at = now(), "
        "lease_expires_at = now() + interval '1 hour'"
    )
    for act in ("cancel", "fire"):
        busy = operate("timers", act, "orders", "a", *REASON)
        assert (busy.code, busy.out) == (1, "Nothing was changed: a process is handling it.\n")
