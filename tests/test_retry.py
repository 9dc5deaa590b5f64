"""When a row that failed is tried again, and when no more."""

import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from faststream_outbox import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryStrategyProto
from faststream_outbox.retry import DEFAULT_RETRY, UnusableAnswerError, check_strategy, next_delay

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def delays(strategy: RetryStrategyProto, attempts: int) -> list[float | None]:
    return [
        strategy.get_next_attempt_delay(first_attempt_at=FIRST, last_attempt_at=FIRST, attempts_count=n)
        for n in range(1, attempts + 1)
    ]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        pytest.param(ConstantRetry(delay_seconds=5), [5, 5, 5], id="a constant delay"),
        pytest.param(LinearRetry(initial_delay_seconds=1, step_seconds=2), [1, 3, 5, 7], id="a linear delay"),
        pytest.param(ExponentialRetry(initial_delay_seconds=1), [1, 2, 4, 8], id="an exponential delay doubles"),
        pytest.param(ExponentialRetry(initial_delay_seconds=1, multiplier=3), [1, 3, 9, 27], id="or is multiplied"),
        pytest.param(
            ExponentialRetry(initial_delay_seconds=1, max_delay_seconds=5), [1, 2, 4, 5, 5], id="up to its bound"
        ),
        pytest.param(NoRetry(), [None], id="no retry"),
        pytest.param(
            ConstantRetry(delay_seconds=1, max_attempts=3), [1, 1, None, None], id="attempts include the first one"
        ),
        pytest.param(
            LinearRetry(initial_delay_seconds=1, step_seconds=0, max_attempts=3),
            [1, 1, None, None],
            id="attempts of a linear delay too",
        ),
        pytest.param(
            ExponentialRetry(initial_delay_seconds=1, multiplier=1, max_attempts=3),
            [1, 1, None, None],
            id="and of an exponential one",
        ),
    ],
)
def test_delays_after_each_attempt(strategy: RetryStrategyProto, expected: list[float | None]) -> None:
    assert delays(strategy, len(expected)) == expected


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(ExponentialRetry(initial_delay_seconds=1, max_delay_seconds=300), id="with a bound"),
        pytest.param(ExponentialRetry(initial_delay_seconds=1), id="without a bound"),
    ],
)
def test_the_ten_thousandth_attempt_does_not_overflow(strategy: RetryStrategyProto) -> None:
    at = strategy.get_next_attempt_at(first_attempt_at=FIRST, last_attempt_at=FIRST, attempts_count=10_000)
    assert at is not None
    assert at > FIRST


def test_no_retry_has_no_next_attempt() -> None:
    assert NoRetry().get_next_attempt_at(first_attempt_at=FIRST, last_attempt_at=FIRST, attempts_count=1) is None


@pytest.mark.parametrize(
    ("elapsed", "expected"),
    [
        pytest.param(0, 10, id="at the first attempt"),
        pytest.param(50, 10, id="the next attempt would be due just in time"),
        pytest.param(50.001, None, id="the next attempt would be due too late"),
        pytest.param(600, None, id="long after the bound"),
    ],
)
def test_the_total_delay_is_bounded(elapsed: float, expected: float | None) -> None:
    strategy = ConstantRetry(delay_seconds=10, max_total_delay_seconds=60)
    last = FIRST + timedelta(seconds=elapsed)
    found = strategy.get_next_attempt_delay(first_attempt_at=FIRST, last_attempt_at=last, attempts_count=2)
    assert found == expected


def test_jitter_lengthens_and_spreads() -> None:
    found = delays(ConstantRetry(delay_seconds=10, jitter_factor=0.2), 200)
    assert all(delay is not None and 10 <= delay <= 12 for delay in found)
    assert len(set(found)) > 100


@pytest.mark.parametrize(
    ("strategy", "elapsed", "least"),
    [
        pytest.param(
            ConstantRetry(delay_seconds=10, max_total_delay_seconds=10, max_attempts=5, jitter_factor=0.2),
            0,
            10,
            id="a constant delay as long as the total",
        ),
        pytest.param(
            LinearRetry(initial_delay_seconds=5, step_seconds=5, max_total_delay_seconds=16, jitter_factor=1.0),
            6,
            10,
            id="a linear delay",
        ),
        pytest.param(
            ExponentialRetry(initial_delay_seconds=5, max_total_delay_seconds=100, jitter_factor=0.5),
            88,
            10,
            id="an exponential delay",
        ),
    ],
)
def test_the_jitter_does_not_decide_whether_there_is_another_attempt(
    strategy: RetryStrategyProto, elapsed: float, least: float
) -> None:
    last, total = FIRST + timedelta(seconds=elapsed), getattr(strategy, "max_total_delay_seconds", 0)
    attempt: dict[str, Any] = {"first_attempt_at": FIRST, "last_attempt_at": last}
    for _ in range(1_000):
        delay = strategy.get_next_attempt_delay(**attempt, attempts_count=2)
        assert delay is not None
        assert least <= delay <= total - elapsed
    late = {**attempt, "last_attempt_at": last + timedelta(seconds=20)}
    assert strategy.get_next_attempt_delay(**late, attempts_count=2) is None


def test_the_next_attempt_is_counted_from_the_last() -> None:
    last = FIRST + timedelta(hours=1)
    at = ConstantRetry(delay_seconds=5).get_next_attempt_at(
        first_attempt_at=FIRST, last_attempt_at=last, attempts_count=1
    )
    assert at == last + timedelta(seconds=5)


class TransientError(Exception):
    pass


class TransientOnlyByTime(ExponentialRetry):
    def get_next_attempt_at(self, *, exception: BaseException | None = None, **kw: Any) -> datetime | None:
        if exception and not isinstance(exception, TransientError):
            return None
        return super().get_next_attempt_at(exception=exception, **kw)


class TransientOnlyByDelay(ExponentialRetry):
    def get_next_attempt_delay(self, *, exception: BaseException | None = None, **kw: Any) -> float | None:
        if exception and not isinstance(exception, TransientError):
            return None
        return super().get_next_attempt_delay(exception=exception, **kw)


@pytest.mark.parametrize("strategy_class", [TransientOnlyByTime, TransientOnlyByDelay])
def test_either_method_may_be_overridden(strategy_class: type[ExponentialRetry]) -> None:
    strategy = strategy_class(initial_delay_seconds=1)
    attempt: dict[str, Any] = {"first_attempt_at": FIRST, "last_attempt_at": FIRST, "attempts_count": 1}
    assert strategy.get_next_attempt_at(**attempt, exception=ValueError()) is None
    assert strategy.get_next_attempt_at(**attempt, exception=TransientError()) == FIRST + timedelta(seconds=1)


def test_the_default_is_patient_and_bounded() -> None:
    found = delays(DEFAULT_RETRY, 11)
    assert [delay is None for delay in found] == [False] * 9 + [True] * 2
    assert isinstance(DEFAULT_RETRY, RetryStrategyProto)


ATTEMPT: dict[str, Any] = {"first_attempt_at": FIRST, "last_attempt_at": FIRST, "attempts_count": 1}


class DelaySubclass(RetryStrategyProto):
    def get_next_attempt_delay(self, **_attempt: Any) -> float | None:
        return 7.0


class TimeSubclass(RetryStrategyProto):
    def get_next_attempt_at(self, *, last_attempt_at: datetime, **_attempt: Any) -> datetime | None:
        return last_attempt_at + timedelta(seconds=7)


class BothSubclass(DelaySubclass):
    def get_next_attempt_at(self, *, last_attempt_at: datetime, **_attempt: Any) -> datetime | None:
        return last_attempt_at + timedelta(seconds=8)


class DelayShape:
    def get_next_attempt_delay(self, **_attempt: Any) -> float | None:
        return 7.0


class TimeShape:
    def get_next_attempt_at(self, *, last_attempt_at: datetime, **_attempt: Any) -> datetime | None:
        return last_attempt_at + timedelta(seconds=7)


class BothShape(DelayShape):
    def get_next_attempt_at(self, *, last_attempt_at: datetime, **_attempt: Any) -> datetime | None:
        return last_attempt_at + timedelta(seconds=8)


class Neither(RetryStrategyProto):
    pass


def neither_with(**attributes: Any) -> Neither:
    strategy = Neither()
    vars(strategy).update(attributes)
    return strategy


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        pytest.param(DelaySubclass(), 7, id="a subclass of the protocol with a delay"),
        pytest.param(TimeSubclass(), 7, id="a subclass of the protocol with a time"),
        pytest.param(BothSubclass(), 8, id="a subclass with both: the time decides"),
        pytest.param(DelayShape(), 7, id="any class with a delay"),
        pytest.param(TimeShape(), 7, id="any class with a time"),
        pytest.param(BothShape(), 8, id="any class with both: the time decides"),
        pytest.param(SimpleNamespace(get_next_attempt_delay=lambda **_: 7), 7, id="a function as an attribute"),
        pytest.param(neither_with(get_next_attempt_delay=lambda **_: 7), 7, id="an attribute of a subclass"),
        pytest.param(
            SimpleNamespace(get_next_attempt_at=None, get_next_attempt_delay=lambda **_: 7), 7, id="None is no method"
        ),
        pytest.param(SimpleNamespace(get_next_attempt_delay=lambda **_: None), None, id="a delay that gives up"),
    ],
)
def test_either_method_alone_is_asked(strategy: Any, expected: float | None) -> None:
    check_strategy(strategy)
    assert next_delay(strategy, **ATTEMPT) == expected


def test_each_method_of_a_subclass_follows_from_the_other() -> None:
    assert DelaySubclass().get_next_attempt_at(**ATTEMPT) == FIRST + timedelta(seconds=7)
    assert TimeSubclass().get_next_attempt_delay(**ATTEMPT) == 7


class Asynchronous:
    async def get_next_attempt_delay(self, **_attempt: Any) -> Any:
        return 1.0


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        pytest.param(object(), "object defines neither: define one of them", id="an object without a method"),
        pytest.param(Neither(), "Neither defines neither: define one of them", id="a subclass without a method"),
        pytest.param(DelaySubclass, "not the class of one", id="a class"),
        pytest.param(Asynchronous(), "is asynchronous", id="a coroutine function"),
    ],
)
def test_what_is_no_strategy(strategy: object, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        check_strategy(strategy)


# A whole number may be too large for a float.
NAN, CENTURIES, HUGE = float("nan"), 4_000_000_000.0, 10**400


@pytest.mark.parametrize("base", [object, RetryStrategyProto], ids=["by shape", "by subclass"])
@pytest.mark.parametrize(
    "answer",
    [NAN, math.inf, -math.inf, -1.0, CENTURIES, HUGE, True, "soon", timedelta(seconds=5), FIRST],
    ids=lambda answer: f"{answer}"[:20],
)
def test_a_delay_that_is_nonsense(base: type, answer: Any) -> None:
    strategy = type("Mine", (base,), {"get_next_attempt_delay": lambda _self, **_attempt: answer})()
    with pytest.raises(UnusableAnswerError, match="seconds from 0 to"):
        next_delay(strategy, **ATTEMPT)


@pytest.mark.parametrize(
    "answer", [FIRST.replace(tzinfo=None), datetime.max.replace(tzinfo=UTC), 5.0, timedelta(seconds=5), ""], ids=repr
)
def test_a_time_that_is_nonsense(answer: Any) -> None:
    strategy = SimpleNamespace(get_next_attempt_at=lambda **_attempt: answer)
    with pytest.raises(UnusableAnswerError, match="datetime with a time zone"):
        next_delay(strategy, **ATTEMPT)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(
            ExponentialRetry(initial_delay_seconds=1, max_delay_seconds=60, jitter_factor=0.5), id="growing to it"
        ),
        pytest.param(
            ExponentialRetry(initial_delay_seconds=60, max_delay_seconds=60, jitter_factor=1), id="beginning with it"
        ),
    ],
)
def test_the_longest_delay_is_a_maximum_and_still_spread(strategy: ExponentialRetry) -> None:
    last = {next_delay(strategy, **{**ATTEMPT, "attempts_count": 20}) for _ in range(200)}
    assert all(delay is not None and 30 <= delay <= 60 for delay in last)
    assert len(last) > 100


def test_without_a_maximum_a_century_is() -> None:
    strategy = ExponentialRetry(initial_delay_seconds=1, jitter_factor=1)
    delay = next_delay(strategy, **{**ATTEMPT, "attempts_count": 10_000})
    assert delay is not None
    assert delay <= 36_525 * 86_400


def test_a_zero_delay_stays_zero_for_ever() -> None:
    strategy = ExponentialRetry(initial_delay_seconds=0, max_attempts=10_000)
    assert next_delay(strategy, **{**ATTEMPT, "attempts_count": 5_000}) == 0


EXPONENTIAL: dict[str, Any] = {"initial_delay_seconds": 1}
LINEAR: dict[str, Any] = {"initial_delay_seconds": 1, "step_seconds": 1}
CONSTANT: dict[str, Any] = {"delay_seconds": 1}
REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    *(
        (ConstantRetry, {"delay_seconds": wrong}, "delay_seconds is a")
        for wrong in (-1, NAN, math.inf, True, "1", None, timedelta(seconds=1), CENTURIES, HUGE, -HUGE)
    ),
    *((ConstantRetry, CONSTANT | {"max_attempts": wrong}, "max_attempts is") for wrong in (0, -1, 1.5, True, math.inf)),
    *(
        (ConstantRetry, CONSTANT | {"max_total_delay_seconds": wrong}, "max_total_delay_seconds is a")
        for wrong in (-5, NAN, math.inf, "1", HUGE)
    ),
    (ConstantRetry, CONSTANT | {"max_total_delay_seconds": 0.5}, r"\(0.5\) is less than delay_seconds .* NoRetry"),
    *(
        (ConstantRetry, CONSTANT | {"jitter_factor": wrong}, "jitter_factor is a")
        for wrong in ("a lot", -0.1, NAN, 20, HUGE)
    ),
    *(
        (LinearRetry, LINEAR | {"step_seconds": wrong}, "step_seconds is a")
        for wrong in (math.inf, -1, CENTURIES, HUGE)
    ),
    (LinearRetry, LINEAR | {"initial_delay_seconds": NAN}, "initial_delay_seconds is a"),
    *(
        (ExponentialRetry, EXPONENTIAL | {"multiplier": wrong}, "multiplier is a")
        for wrong in (0.5, NAN, math.inf, HUGE)
    ),
    (ExponentialRetry, {"initial_delay_seconds": -1}, "initial_delay_seconds is a"),
    *(
        (ExponentialRetry, EXPONENTIAL | {"max_delay_seconds": wrong}, "max_delay_seconds is a")
        for wrong in (-1, NAN, math.inf, CENTURIES, HUGE)
    ),
    (ExponentialRetry, EXPONENTIAL | {"max_delay_seconds": 0.5}, r"\(0.5\) is less than initial_delay_seconds \(1\)"),
    (ConstantRetry, {"delay_seconds": 0}, "delay_seconds is 0 and there is no max_attempts"),
    (ConstantRetry, {"delay_seconds": 0, "max_total_delay_seconds": 5}, "there is no max_attempts"),
    (LinearRetry, {"initial_delay_seconds": 0, "step_seconds": 0}, "there is no max_attempts"),
    (ExponentialRetry, {"initial_delay_seconds": 0.0, "jitter_factor": 0.5}, "there is no max_attempts"),
]


@pytest.mark.parametrize(
    ("strategy_class", "arguments", "says"),
    REFUSED,
    ids=[f"{each.__name__} {arguments}" for each, arguments, _ in REFUSED],
)
def test_nonsense_is_refused(strategy_class: type[Any], arguments: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        strategy_class(**arguments)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        pytest.param(ConstantRetry(delay_seconds=0, max_attempts=3), [0, 0, None], id="at once, with an end"),
        pytest.param(LinearRetry(initial_delay_seconds=0, step_seconds=1), [0, 1, 2], id="at once, then later"),
        pytest.param(
            ExponentialRetry(initial_delay_seconds=5, max_delay_seconds=5), [5, 5, 5], id="a maximum from the start"
        ),
    ],
)
def test_what_is_no_nonsense(strategy: RetryStrategyProto, expected: list[float | None]) -> None:
    assert delays(strategy, 3) == expected
