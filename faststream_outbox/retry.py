"""Decides when a failed row is tried again, and when it is given up."""

import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, runtime_checkable

from faststream_outbox.storage.checks import MAX_DELAY, check_count, check_number


@runtime_checkable
class RetryStrategyProto(Protocol):
    """A strategy that returns the time of the next attempt."""

    def get_next_attempt_at(
        self,
        *,
        first_attempt_at: datetime,
        last_attempt_at: datetime,
        attempts_count: int,
        exception: BaseException | None = None,
    ) -> datetime | None:
        """Return when to try again, or None to give up: the row is then dead."""


@runtime_checkable
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
        """Return how many seconds after the last attempt to try again, or None to give up."""


class RetryStrategy(RetryDelayProto, ABC):
    """The base class of the strategies: override either method, and the other follows.

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
        """Return when to try again, or None to give up; a subscriber calls this."""
        delay = self.get_next_attempt_delay(
            first_attempt_at=first_attempt_at,
            last_attempt_at=last_attempt_at,
            attempts_count=attempts_count,
            exception=exception,
        )
        return None if delay is None else last_attempt_at + timedelta(seconds=min(delay, MAX_DELAY.total_seconds()))


class NoRetry(RetryStrategy):
    """Gives up after the first failure.

    Example:
        @broker.subscriber("audit", retry_strategy=NoRetry())

    """

    def get_next_attempt_delay(self, **attempt: Any) -> float | None:
        """Return None: give up."""
        del attempt
        return None


@dataclass(kw_only=True)
class _BoundedRetry(RetryStrategy):
    """Retries after a delay, up to a number of attempts or a total time.

    `max_attempts` includes the first attempt. `max_total_delay_seconds` is the time from the first attempt to the next
    one. `jitter_factor` spreads rows that failed together: 0.2 makes a delay 0 to 20 % longer.
    """

    max_attempts: int | None = None
    max_total_delay_seconds: float | None = None
    jitter_factor: float = 0.0

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            check_count("max_attempts", self.max_attempts)
        if self.max_total_delay_seconds is not None:
            check_number("max_total_delay_seconds", self.max_total_delay_seconds)
        check_number("jitter_factor", self.jitter_factor)

    @abstractmethod
    def delay_after(self, attempts_count: int) -> float:
        """Return the delay after this many attempts, without jitter."""

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
        spread = 1 + self.jitter_factor * random.random()  # noqa: S311 - not for cryptography
        delay = self.delay_after(attempts_count) * spread
        elapsed = (last_attempt_at - first_attempt_at).total_seconds()
        if self.max_total_delay_seconds is not None and elapsed + delay > self.max_total_delay_seconds:
            return None
        return delay


@dataclass(kw_only=True)
class ConstantRetry(_BoundedRetry):
    """Waits the same time before each retry.

    Example:
        ConstantRetry(delay_seconds=5, max_attempts=3)

    """

    delay_seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("delay_seconds", self.delay_seconds)

    def delay_after(self, attempts_count: int) -> float:
        """Return the delay."""
        del attempts_count
        return self.delay_seconds


@dataclass(kw_only=True)
class LinearRetry(_BoundedRetry):
    """Waits longer by the same step before each retry.

    Example:
        LinearRetry(initial_delay_seconds=1, step_seconds=2)  # 1, 3, 5, …

    """

    initial_delay_seconds: float
    step_seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("initial_delay_seconds", self.initial_delay_seconds)
        check_number("step_seconds", self.step_seconds)

    def delay_after(self, attempts_count: int) -> float:
        """Return the delay after this many attempts."""
        return self.initial_delay_seconds + self.step_seconds * (attempts_count - 1)


@dataclass(kw_only=True)
class ExponentialRetry(_BoundedRetry):
    """Multiplies the delay before each retry, up to a maximum.

    Example:
        ExponentialRetry(initial_delay_seconds=1, max_delay_seconds=300, max_attempts=10, jitter_factor=0.2)

    """

    initial_delay_seconds: float
    multiplier: float = 2.0
    max_delay_seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("initial_delay_seconds", self.initial_delay_seconds)
        check_number("multiplier", self.multiplier, least=1.0)
        if self.max_delay_seconds is not None:
            check_number("max_delay_seconds", self.max_delay_seconds)

    def delay_after(self, attempts_count: int) -> float:
        """Return the delay after this many attempts."""
        bound = math.inf if self.max_delay_seconds is None else self.max_delay_seconds
        try:
            return min(self.initial_delay_seconds * self.multiplier ** (attempts_count - 1), bound)
        except OverflowError:  # about the thousandth attempt, where max_attempts is None
            return bound


# Ten attempts over about nine minutes: a short failure of another service must not lose a message.
DEFAULT_RETRY: Final = ExponentialRetry(
    initial_delay_seconds=1.0, multiplier=2.0, max_delay_seconds=300.0, max_attempts=10, jitter_factor=0.2
)
