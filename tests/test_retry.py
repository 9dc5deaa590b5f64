"""When a row that failed is tried again, and when no more."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from faststream_outbox import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryStrategyProto
from faststream_outbox.retry import DEFAULT_RETRY, RetryStrategy

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def delays(strategy: RetryStrategy, attempts: int) -> list[float | None]:
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
def test_delays_after_each_attempt(strategy: RetryStrategy, expected: list[float | None]) -> None:
    assert delays(strategy, len(expected)) == expected


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(ExponentialRetry(initial_delay_seconds=1, max_delay_seconds=300), id="with a bound"),
        pytest.param(ExponentialRetry(initial_delay_seconds=1), id="without a bound"),
    ],
)
def test_the_ten_thousandth_attempt_does_not_overflow(strategy: RetryStrategy) -> None:
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


@pytest.mark.parametrize(
    ("strategy_class", "arguments", "says"),
    [
        (ConstantRetry, {"delay_seconds": -1}, "delay_seconds"),
        (ConstantRetry, {"delay_seconds": float("nan")}, "delay_seconds"),
        (ConstantRetry, {"delay_seconds": True}, "delay_seconds"),
        (ConstantRetry, {"delay_seconds": 1, "max_attempts": 0}, "max_attempts"),
        (ConstantRetry, {"delay_seconds": 1, "max_total_delay_seconds": -5}, "max_total_delay_seconds"),
        (ConstantRetry, {"delay_seconds": 1, "jitter_factor": "a lot"}, "jitter_factor"),
        (LinearRetry, {"initial_delay_seconds": 1, "step_seconds": float("inf")}, "step_seconds"),
        (ExponentialRetry, {"initial_delay_seconds": 1, "multiplier": 0.5}, "multiplier"),
        (ExponentialRetry, {"initial_delay_seconds": 1, "max_delay_seconds": -1}, "max_delay_seconds"),
    ],
)
def test_nonsense_is_refused(strategy_class: type[RetryStrategy], arguments: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        strategy_class(**arguments)
