"""What becomes of a row: by the verdict on its message, what its handler raised, and the subscriber's options."""

import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import StopConsume

from faststream_outbox import ConstantRetry, NoRetry
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.message import OutboxDelivery, OutboxMessage
from faststream_outbox.storage import Ack, Dead, NewRow, Outcome, Park, Retry
from faststream_outbox.storage.outcomes import MAX_EXCEPTION_BYTES
from faststream_outbox.subscriber.judge import Interrupted, Judge, render_traceback
from tests.backends import MemoryBackend
from tests.engine.pipelines import Reports

Decide = Callable[[OutboxMessage], Awaitable[None]]
IN_AN_HOUR = ConstantRetry(delay_seconds=3600.0)
OUTPUT = NewRow("next", b"2")


async def decide_nothing(_message: OutboxMessage) -> None:
    """Give no verdict."""


async def ack(message: OutboxMessage) -> None:
    await message.ack()


async def ack_then_reject(message: OutboxMessage) -> None:
    await message.ack()
    await message.reject()


async def nack(message: OutboxMessage) -> None:
    await message.nack()


async def nack_for_five_seconds(message: OutboxMessage) -> None:
    await message.nack(delay=5.0)


async def reject(message: OutboxMessage) -> None:
    await message.reject()


async def deliver(decide: Decide, *, key: str | None = None, attempts: int = 0) -> OutboxDelivery:
    backend = MemoryBackend()
    await backend.insert(NewRow("q", b"1"))
    [row] = (await backend.claim("q")).rows
    delivery = OutboxDelivery.of(row)
    delivery.entity_key, delivery.attempts_count = key, attempts
    await decide(OutboxMessage(raw_message=delivery, body=b"1"))
    return delivery


def summary(outcome: Outcome) -> tuple[Any, ...]:
    match outcome:
        case Ack(outputs):
            return ("ack", *(row.queue for row in outputs))
        case Retry():
            return "retry", round(outcome.delay_seconds), outcome.attempts_count
        case Dead():
            return "dead", outcome.reason, outcome.attempts_count
        case Park(dead):
            return "park", dead.reason, dead.attempts_count


@pytest.mark.parametrize(
    ("decide", "error", "options", "expected"),
    [
        pytest.param(ack, None, {}, ("ack",), id="an acked message is handled"),
        pytest.param(ack_then_reject, None, {}, ("ack",), id="the first verdict stands"),
        pytest.param(ack, ValueError(), {}, ("ack",), id="an ack stands when the handler raises afterwards"),
        pytest.param(
            ack,
            ValueError(),
            {"policy": AckPolicy.ACK},
            ("dead", "rejected", 1),
            id="under ACK a message that failed is kept as a dead letter",
        ),
        pytest.param(ack, StopConsume(), {}, ("retry", 0, 0), id="a handler that stops has not handled its message"),
        pytest.param(ack, SystemExit(), {}, ("retry", 0, 0), id="nor has one that ends the process"),
        pytest.param(reject, SystemExit(), {}, ("retry", 0, 0), id="nor has it rejected the message"),
        pytest.param(reject, None, {}, ("dead", "rejected", 1), id="a rejected message is dead at once"),
        pytest.param(reject, None, {"attempts": 3}, ("dead", "rejected", 4), id="a rejection is an attempt"),
        pytest.param(
            reject, None, {"on_dead": "park", "key": "a"}, ("park", "rejected", 1), id="a rejected key is parked"
        ),
        pytest.param(
            reject, None, {"on_dead": "park"}, ("dead", "rejected", 1), id="a message without a key is never parked"
        ),
        pytest.param(nack, None, {}, ("retry", 3600, 1), id="a nack without a delay asks the strategy"),
        pytest.param(nack_for_five_seconds, None, {}, ("retry", 5, 1), id="a nack with a delay does not"),
        pytest.param(
            nack_for_five_seconds,
            None,
            {"retry_strategy": NoRetry()},
            ("retry", 5, 1),
            id="a nack with a delay is retried although the strategy gives up",
        ),
        pytest.param(
            nack,
            None,
            {"retry_strategy": NoRetry()},
            ("dead", "retry_terminal", 1),
            id="a strategy that gives up is final",
        ),
        pytest.param(
            nack,
            None,
            {"retry_strategy": ConstantRetry(delay_seconds=1, max_attempts=3), "attempts": 2},
            ("dead", "retry_terminal", 3),
            id="the last attempt that a strategy allows is the last",
        ),
        pytest.param(
            nack,
            None,
            {"retry_strategy": NoRetry(), "on_dead": "park", "key": "a"},
            ("park", "retry_terminal", 1),
            id="a key whose message is given up is parked",
        ),
        pytest.param(decide_nothing, ValueError(), {}, ("retry", 3600, 1), id="an exception is a failed attempt"),
        pytest.param(
            decide_nothing, ValueError(), {"attempts": 4}, ("retry", 3600, 5), id="attempts are counted one by one"
        ),
        pytest.param(decide_nothing, None, {}, ("retry", 3600, 1), id="no verdict is a failed attempt"),
        pytest.param(
            decide_nothing,
            Interrupted(),
            {"retry_strategy": NoRetry()},
            ("retry", 0, 0),
            id="a handler that the drain cancelled has made no attempt",
        ),
    ],
)
async def test_what_becomes_of_a_row(
    decide: Decide, error: BaseException | None, options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    delivery = await deliver(decide, key=options.pop("key", None), attempts=options.pop("attempts", 0))
    policy = options.pop("policy", AckPolicy.NACK_ON_ERROR)
    judge = Judge(policy, SubscriberOptions(**{"retry_strategy": IN_AN_HOUR, **options}), None, Reports())
    assert summary(judge.outcome(delivery, error)) == expected


async def test_what_a_handler_published_in_answer_goes_with_its_ack() -> None:
    delivery = await deliver(ack)
    delivery.outputs = (OUTPUT,)
    judge = Judge(AckPolicy.NACK_ON_ERROR, SubscriberOptions(retry_strategy=IN_AN_HOUR), None, Reports())
    assert summary(judge.outcome(delivery, None)) == ("ack", "next")


class ByTime:
    """A strategy with the one method, which answers as a test says."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def get_next_attempt_at(self, *, last_attempt_at: dt.datetime, **_attempt: Any) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return None if self._answer is None else last_attempt_at + dt.timedelta(seconds=self._answer)


class ByDelay:
    """A strategy with the other method."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def get_next_attempt_delay(self, **_attempt: Any) -> Any:
        return self._answer


@pytest.mark.parametrize(
    ("strategy", "expected", "reported"),
    [
        pytest.param(ByTime(7.0), ("retry", 7, 1), False, id="a time is a delay from now"),
        pytest.param(ByTime(-7.0), ("retry", 0, 1), False, id="a time that has passed is now"),
        pytest.param(ByTime(None), ("dead", "retry_terminal", 1), False, id="no time is the end"),
        pytest.param(ByDelay(7.0), ("retry", 7, 1), False, id="a delay is a delay"),
        pytest.param(ByDelay(None), ("dead", "retry_terminal", 1), False, id="no delay is the end"),
        pytest.param(ByDelay(-7.0), ("retry", 1, 1), True, id="a negative delay is an error: the default decides"),
        pytest.param(ByDelay("soon"), ("retry", 1, 1), True, id="so is a delay that is no number"),
        pytest.param(ByDelay(float("nan")), ("retry", 1, 1), True, id="so is one that is not finite"),
        pytest.param(ByDelay(float("inf")), ("retry", 1, 1), True, id="or has no end"),
        pytest.param(ByDelay(1e12), ("retry", 1, 1), True, id="or ends in thousands of years"),
        pytest.param(ByTime(1e10), ("retry", 1, 1), True, id="a time in hundreds of years is an error too"),
        pytest.param(ByTime(ValueError()), ("retry", 1, 1), True, id="a strategy that raises: the default decides"),
    ],
)
async def test_what_a_strategy_answers(strategy: Any, expected: tuple[Any, ...], reported: bool) -> None:
    reports = Reports()
    judge = Judge(AckPolicy.NACK_ON_ERROR, SubscriberOptions(retry_strategy=strategy), None, reports)
    assert summary(judge.outcome(await deliver(nack), None)) == expected
    assert [log["event"] for log in reports.logs] == ["retry_strategy_failed"] * reported


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        pytest.param(ByDelay(-7.0), "ByDelay returned -7.0 for row 1 (queue q), and a delay is", id="what it returned"),
        pytest.param(ByTime(KeyError()), "ByTime raised KeyError for row 1 (queue q);", id="what it raised"),
    ],
)
async def test_the_log_says_what_a_strategy_did(strategy: Any, says: str) -> None:
    reports = Reports()
    judge = Judge(AckPolicy.NACK_ON_ERROR, SubscriberOptions(retry_strategy=strategy), None, reports)
    judge.outcome(await deliver(nack), None)
    [log] = reports.logs
    assert log["message"].startswith(says)


def unrenderable(_error: BaseException) -> str:
    raise RuntimeError("secret")


@pytest.mark.parametrize(
    ("render", "expected"),
    [
        pytest.param(None, "ValueError: no\n", id="the traceback by default"),
        pytest.param(lambda error: type(error).__name__, "ValueError", id="what the user's renderer returns"),
        pytest.param(lambda _error: None, None, id="nothing where it returns nothing"),
        pytest.param(lambda _error: 7, "7", id="its text where it returns something else"),
        pytest.param(
            unrenderable, "ValueError (last_exception_renderer raised RuntimeError)", id="no secret where it raises"
        ),
    ],
)
async def test_what_is_kept_of_an_exception(render: Any, expected: str | None) -> None:
    judge = Judge(AckPolicy.NACK_ON_ERROR, SubscriberOptions(retry_strategy=NoRetry()), render, Reports())
    dead = judge.outcome(await deliver(decide_nothing), ValueError("no"))
    assert isinstance(dead, Dead)
    assert dead.last_exception == expected
    judge = Judge(AckPolicy.NACK_ON_ERROR, SubscriberOptions(), render, Reports())
    retry = judge.outcome(await deliver(decide_nothing), ValueError("no"))
    assert isinstance(retry, Retry)
    assert retry.failure == (expected and expected.rstrip()), "the first line of it"


def test_a_long_exception_is_cut_before_its_traceback() -> None:
    with pytest.raises(ValueError, match="x") as caught:
        raise ValueError("x" * 5000)
    first, *rest = render_traceback(caught.value).splitlines()
    assert len(first) < 1100
    assert first.endswith("…")
    assert any("test_judge.py" in line for line in rest)


class Holding(Exception):  # noqa: N818 - it stands for what a frame holds
    """An exception that is large, as one with a statement and its parameters is."""


@pytest.mark.parametrize("options", [{"retry_strategy": NoRetry()}, {}], ids=["dead", "retried"])
async def test_an_outcome_that_waits_to_be_written_keeps_neither_the_exception_nor_its_whole_text(
    options: dict[str, Any],
) -> None:
    """The traceback refers to the handler's frames, and these to all that the handler had loaded."""
    with pytest.raises(Holding) as raised:
        raise Holding("x" * 10_000_000)
    judge = Judge(AckPolicy.NACK_ON_ERROR, SubscriberOptions(**options), None, Reports())
    outcome = judge.outcome(await deliver(decide_nothing), raised.value)
    assert isinstance(outcome, Dead | Retry)
    assert outcome.error is Holding
    if isinstance(outcome, Dead):
        assert outcome.last_exception is not None
        assert outcome.last_exception.startswith(f"{__name__}.Holding: xxx")
        assert len(outcome.last_exception) <= MAX_EXCEPTION_BYTES
    else:
        assert outcome.failure is not None
        assert outcome.failure.startswith(f"{__name__}.Holding: xxx")
        assert len(outcome.failure) == 500
