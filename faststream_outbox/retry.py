"""Decides when a failed row is tried again, and when it is given up."""

import inspect
import math
import random
from abc import abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, cast, runtime_checkable

from faststream_outbox.storage.checks import MAX_DELAY, check_count, check_number

_LONGEST_DELAY: Final = MAX_DELAY.total_seconds()


class RetryTimeProto(Protocol):
    """A strategy that returns the time of the next attempt."""

    @abstractmethod
    def get_next_attempt_at(
        self,
        *,
        first_attempt_at: datetime,
        last_attempt_at: datetime,
        attempts_count: int,
        exception: BaseException | None = None,
    ) -> datetime | None:
        """Return when to try again, with a time zone, or None to give up: the row is then dead."""


class RetryDelayProto(Protocol):
    """A strategy that returns the delay before the next attempt."""

    @abstractmethod
    def get_next_attempt_delay(
        self,
        *,
        first_attempt_at: datetime,
        last_attempt_at: datetime,
        attempts_count: int,
        exception: BaseException | None = None,
    ) -> float | None:
        """Return how many seconds after the last attempt to try again, or None to give up: the row is then dead."""


# What `retry_strategy=` takes: an object with either method.
AnyRetryStrategy = RetryTimeProto | RetryDelayProto


@runtime_checkable
class RetryStrategyProto(RetryTimeProto, RetryDelayProto, Protocol):
    """The base class of strategies: define either method, and the other follows.

    A subscriber asks `get_next_attempt_at`, so that one decides in a class that defines both.

    Example:
        class TransientOnly(ExponentialRetry):
            def get_next_attempt_delay(self, *, exception=None, **kw):
                if not isinstance(exception, TransientError):
                    return None
                return super().get_next_attempt_delay(exception=exception, **kw)

    """

    def get_next_attempt_at(
        self,
        *,
        first_attempt_at: datetime,
        last_attempt_at: datetime,
        attempts_count: int,
        exception: BaseException | None = None,
    ) -> datetime | None:
        """Return when to try again, or None to give up; a subscriber calls this.

        Args:
            first_attempt_at: When the message first failed.
            last_attempt_at: When it failed this time; the delay starts here.
            attempts_count: How often it has failed, this time included: 1 or more.
            exception: What the handler raised; None if it gave the verdict `nack`.

        """
        answer = self.get_next_attempt_delay(
            first_attempt_at=first_attempt_at,
            last_attempt_at=last_attempt_at,
            attempts_count=attempts_count,
            exception=exception,
        )
        return None if answer is None else last_attempt_at + timedelta(seconds=_check_delay(answer))

    def get_next_attempt_delay(
        self,
        *,
        first_attempt_at: datetime,
        last_attempt_at: datetime,
        attempts_count: int,
        exception: BaseException | None = None,
    ) -> float | None:
        """Return how many seconds after the last attempt to try again, or None to give up.

        Args:
            first_attempt_at: When the message first failed.
            last_attempt_at: When it failed this time; the delay starts here.
            attempts_count: How often it has failed, this time included: 1 or more.
            exception: What the handler raised; None if it gave the verdict `nack`.

        """
        answer = self.get_next_attempt_at(
            first_attempt_at=first_attempt_at,
            last_attempt_at=last_attempt_at,
            attempts_count=attempts_count,
            exception=exception,
        )
        return None if answer is None else _delay_until(answer, last_attempt_at)


class UnusableAnswerError(ValueError):
    """A strategy returned something that is no delay and no time."""

    def __init__(self, answer: object, expected: str) -> None:
        super().__init__(expected)
        self.answer = answer
        self.expected = expected


def check_strategy(strategy: object) -> None:
    """Raise `TypeError` if this is no strategy: None, or an object that defines one of the two methods."""
    if strategy is None:
        return
    if isinstance(strategy, type):
        raise TypeError(f"retry_strategy is a strategy, not the class of one: {strategy.__name__}(…).")
    names, own = " or ".join(_METHODS), [name for name in _METHODS if _defines(strategy, name)]
    if not own:
        raise TypeError(
            f"retry_strategy needs a method {names}, and {type(strategy).__name__} defines neither: define one of them."
        )
    for name in own:
        if inspect.iscoroutinefunction(getattr(strategy, name)):
            raise TypeError(
                f"{type(strategy).__name__}.{name} is asynchronous, and a strategy is called without waiting: write "
                f"def {name}(…)."
            )


def next_delay(strategy: AnyRetryStrategy, **attempt: Any) -> float | None:
    """Ask a strategy for the seconds until the next attempt; None gives up.

    Raise `UnusableAnswerError` if it returns nonsense, and what it raises.
    """
    ask: Any = getattr(strategy, "get_next_attempt_at", None)
    if callable(ask):
        at = ask(**attempt)
        return None if at is None else _delay_until(at, attempt["last_attempt_at"])
    delay = cast("RetryDelayProto", strategy).get_next_attempt_delay(**attempt)
    return None if delay is None else _check_delay(delay)


_METHODS: Final = ("get_next_attempt_at", "get_next_attempt_delay")


def _defines(strategy: object, name: str) -> bool:
    """Return whether an object has this method, and not only the one that follows from the other."""
    method = getattr(strategy, name, None)
    return callable(method) and getattr(method, "__func__", None) is not getattr(RetryStrategyProto, name)


def _check_delay(answer: object) -> float:
    try:
        return check_number("A delay", answer, most=_LONGEST_DELAY)
    except (TypeError, ValueError) as error:
        raise UnusableAnswerError(answer, f"a delay is a number of seconds from 0 to {_LONGEST_DELAY:g}") from error


def _delay_until(answer: object, now: datetime) -> float:
    if not isinstance(answer, datetime) or answer.utcoffset() is None or answer - now > MAX_DELAY:
        raise UnusableAnswerError(
            answer, f"a time is a datetime with a time zone, {MAX_DELAY.days} days from now at the latest"
        )
    return max(0.0, (answer - now).total_seconds())


class NoRetry(RetryStrategyProto):
    """Gives up after the first failure.

    Example:
        @broker.subscriber("audit", retry_strategy=NoRetry())
        async def record(entry: Entry) -> None: ...

    """

    def get_next_attempt_delay(self, **attempt: Any) -> float | None:
        """Return None: give up."""
        del attempt
        return None


@dataclass(kw_only=True)
class _BoundedRetry(RetryStrategyProto):
    """Retries after a delay, up to a number of attempts or a total time.

    `max_attempts` includes the first attempt. `max_total_delay_seconds` is the time from the first attempt to the next
    one. `jitter_factor` spreads rows that failed together: 0.2 makes a delay 0 to 20 % longer, within that total.
    """

    max_attempts: int | None = None
    max_total_delay_seconds: float | None = None
    jitter_factor: float = 0.0

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            check_count("max_attempts", self.max_attempts)
        if self.max_total_delay_seconds is not None:
            check_number("max_total_delay_seconds", self.max_total_delay_seconds)
        # A whole number is probably meant as per cent.
        check_number("jitter_factor", self.jitter_factor, most=1.0)

    def _check_first(self, name: str, *, grows: bool = False) -> None:
        """Check the first delay, a field of this name; `grows` says that later ones are longer than zero."""
        first = check_number(name, getattr(self, name), most=_LONGEST_DELAY)
        if first == 0 and not grows and self.max_attempts is None:
            raise ValueError(
                f"{name} is 0 and there is no max_attempts: a message that always fails would be tried without pause "
                f"and without end. Give max_attempts, or a {name} above 0."
            )
        if self.max_total_delay_seconds is not None and first > self.max_total_delay_seconds:
            raise ValueError(
                f"max_total_delay_seconds ({self.max_total_delay_seconds:g}) is less than {name} ({first:g}), so no "
                "message would be tried again: raise the first, lower the second, or use NoRetry()."
            )

    @abstractmethod
    def delay_after(self, attempts_count: int) -> float:
        """Return the delay after this many attempts, without jitter."""

    def _longest(self) -> float:
        return _LONGEST_DELAY

    def get_next_attempt_delay(
        self,
        *,
        first_attempt_at: datetime,
        last_attempt_at: datetime,
        attempts_count: int,
        exception: BaseException | None = None,
    ) -> float | None:
        """Return how many seconds after the last attempt to try again, or None to give up."""
        del exception
        if self.max_attempts is not None and attempts_count >= self.max_attempts:
            return None
        longest, spread = self._longest(), 1 + self.jitter_factor * random.random()  # noqa: S311 - not for cryptography
        # The jitter ends at the maximum; cut there, all rows that have reached the maximum would be due together.
        unspread = min(self.delay_after(attempts_count), longest / (1 + self.jitter_factor))
        delay = min(unspread * spread, longest)
        if self.max_total_delay_seconds is None:
            return delay
        left = self.max_total_delay_seconds - (last_attempt_at - first_attempt_at).total_seconds()
        # The jitter ends at the total too; it must not decide whether there is another attempt.
        return None if unspread > left else min(delay, left)


@dataclass(kw_only=True)
class ConstantRetry(_BoundedRetry):
    """Waits the same time before each retry.

    Args:
        max_attempts: After how many attempts the message is dead, the first one included; by default no limit.
        max_total_delay_seconds: The longest time from the first attempt to the last one; by default no limit.
        jitter_factor: Spreads rows that failed together: 0.2 makes a delay 0 to 20 % longer; 0 by default.
        delay_seconds: The time before each retry.

    Example:
        ConstantRetry(delay_seconds=5, max_attempts=3)

    """

    delay_seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_first("delay_seconds")

    def delay_after(self, attempts_count: int) -> float:
        """Return the delay."""
        del attempts_count
        return self.delay_seconds


@dataclass(kw_only=True)
class LinearRetry(_BoundedRetry):
    """Waits longer by the same step before each retry.

    Args:
        max_attempts: After how many attempts the message is dead, the first one included; by default no limit.
        max_total_delay_seconds: The longest time from the first attempt to the last one; by default no limit.
        jitter_factor: Spreads rows that failed together: 0.2 makes a delay 0 to 20 % longer; 0 by default.
        initial_delay_seconds: The time before the first retry.
        step_seconds: How much longer each wait is than the one before.

    Example:
        LinearRetry(initial_delay_seconds=1, step_seconds=2)  # 1, 3, 5, …

    """

    initial_delay_seconds: float
    step_seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        step = check_number("step_seconds", self.step_seconds, most=_LONGEST_DELAY)
        self._check_first("initial_delay_seconds", grows=step > 0)

    def delay_after(self, attempts_count: int) -> float:
        """Return the delay after this many attempts."""
        return self.initial_delay_seconds + self.step_seconds * (attempts_count - 1)


@dataclass(kw_only=True)
class ExponentialRetry(_BoundedRetry):
    """Multiplies the delay before each retry, up to a maximum, which the jitter keeps too.

    Args:
        max_attempts: After how many attempts the message is dead, the first one included; by default no limit.
        max_total_delay_seconds: The longest time from the first attempt to the last one; by default no limit.
        jitter_factor: Spreads rows that failed together: 0.2 makes a delay 0 to 20 % longer; 0 by default.
        initial_delay_seconds: The time before the first retry.
        multiplier: How many times as long each wait is as the one before; 2 by default.
        max_delay_seconds: The longest wait; by default no limit.

    Example:
        ExponentialRetry(
            initial_delay_seconds=1, max_delay_seconds=300, max_attempts=10, jitter_factor=0.2
        )

    """

    initial_delay_seconds: float
    multiplier: float = 2.0
    max_delay_seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("multiplier", self.multiplier, least=1.0)
        self._check_first("initial_delay_seconds")
        if self.max_delay_seconds is None:
            return
        most = check_number("max_delay_seconds", self.max_delay_seconds, most=_LONGEST_DELAY)
        if most < self.initial_delay_seconds:
            raise ValueError(
                f"max_delay_seconds ({most:g}) is less than initial_delay_seconds ({self.initial_delay_seconds:g}): "
                "raise the first or lower the second."
            )

    def delay_after(self, attempts_count: int) -> float:
        """Return the delay after this many attempts."""
        try:
            delay = self.initial_delay_seconds * self.multiplier ** (attempts_count - 1)
        except OverflowError:  # about the thousandth attempt, where max_attempts is None
            delay = math.inf if self.initial_delay_seconds else 0.0
        return min(delay, self._longest())

    def _longest(self) -> float:
        return _LONGEST_DELAY if self.max_delay_seconds is None else self.max_delay_seconds


# Ten attempts over about nine minutes: a short failure of another service must not lose a message.
DEFAULT_RETRY: Final = ExponentialRetry(
    initial_delay_seconds=1.0, multiplier=2.0, max_delay_seconds=300.0, max_attempts=10, jitter_factor=0.2
)
