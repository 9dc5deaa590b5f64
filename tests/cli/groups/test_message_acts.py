"""`messages deliver-now`, `discard` and `move`: their effects in the table, and in the audit."""

from collections.abc import Callable

from tests.cli.outbox import HOUR, Done, Outbox

Operate = Callable[..., Done]
REASON = ("--reason", "the provider is back")


def test_a_message_that_waits_is_made_due(outbox: Outbox, operate: Operate) -> None:
    message = outbox.publish(1, activate_in=HOUR)
    done = operate("messages", "deliver-now", message, *REASON, "--by", "kim")
    assert (done.code, done.out) == (0, "Made due 1 message.\n")
    assert outbox.one("SELECT next_attempt_at <= now() FROM outbox")
    assert [each[:3] for each in outbox.audit()] == [("deliver_now", "kim", "the provider is back")]


def test_messages_are_discarded_after_a_dry_run(outbox: Outbox, operate: Operate) -> None:
    for number in range(3):
        outbox.publish(number, queue="mail")
    kept = outbox.publish(9)
    dry = operate("messages", "discard", "--queue", "mail", *REASON)
    assert dry.out.startswith("Would discard 3 messages. Nothing was changed.\n")
    assert outbox.one("SELECT count(*) FROM outbox") == 4
    done = operate("messages", "discard", "--queue", "mail", *REASON, "--yes")
    assert (done.code, done.out) == (0, "Discarded 3 messages.\n")
    assert outbox.run("SELECT id FROM outbox") == [(kept,)]


def test_messages_are_moved_to_another_queue(outbox: Outbox, operate: Operate) -> None:
    message = outbox.publish(1, queue="mial")
    assert operate("messages", "move", message, *REASON).err.startswith("Error: Missing option '--to'. ")
    done = operate("messages", "move", message, "--to", "mail", *REASON)
    assert (done.code, done.out) == (0, "Moved 1 message.\n")
    assert outbox.run("SELECT queue FROM outbox") == [("mail",)]


def test_a_message_that_is_being_handled_is_left_out_and_named(outbox: Outbox, operate: Operate) -> None:
    message = outbox.publish(1)
    outbox.run(
        "UPDATE outbox SET acquired_token = gen_random_uuid(), lease_expires_at = now() + interval '1 hour', "
        "acquired_at = now(), deliveries_count = 1"
    )
    done = operate("messages", "discard", message, *REASON)
    assert (done.code, done.out) == (1, "Discarded 0 messages.\n")
    assert f"  {message}: a process is handling it" in done.err
    assert outbox.one("SELECT count(*) FROM outbox") == 1


def test_an_act_on_nothing_says_that_nothing_matches(outbox: Outbox, operate: Operate) -> None:
    outbox.publish(1)
    nothing = "No message matches: there is nothing to discard.\n"
    for options, code in (((), 0), (("--yes",), 1)):
        done = operate("messages", "discard", "--queue", "mail", *REASON, *options)
        assert (done.code, done.out) == (code, nothing)


def test_a_dry_run_says_what_it_would_do(outbox: Outbox, operate: Operate) -> None:
    outbox.publish(1)
    done = operate("messages", "deliver-now", "--queue", "orders", *REASON)
    assert done.out.startswith("Would deliver 1 message now. Nothing was changed.")
    assert done.err == "Give --yes to deliver it now.\n"
