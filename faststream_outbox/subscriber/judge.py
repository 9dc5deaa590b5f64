"""Decides the outcome of a row by the verdict on its message and by what its handler raised."""

import logging
import traceback
from collections.abc import Sequence
from typing import Final

from faststream.exceptions import StopConsume
from faststream.middlewares import AckPolicy

from faststream_outbox.configs import LastExceptionRenderer
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.message import Nack, OutboxDelivery, Reject
from faststream_outbox.retry import DEFAULT_RETRY, UnusableAnswerError, next_delay
from faststream_outbox.runtime.telemetry import Monitor, PlainError, describe, render
from faststream_outbox.storage import HANDLED, Ack, Dead, FailureReason, Outcome, Park, Retry
from faststream_outbox.storage.errors import is_outage
from faststream_outbox.storage.outcomes import Raised, clean_exception_text, give_up

# How much of an exception's own text is kept; the whole text is cut to 8 KiB when it is stored.
_LONGEST_SUMMARY: Final = 1024
# How much of it a row keeps that is retried: a line of a list.
_LONGEST_LINE: Final = 500
# How many deliveries of a message may end with a lost connection before the next one counts as an attempt.
_MOST_EXCUSED: Final = 3
# By these exceptions a handler says that its subscriber, or the application, stops.
_STOPS: Final = (StopConsume, SystemExit)


class Interrupted(Exception):  # noqa: N818 - it is no error of the handler
    """The drain timeout cancelled the handler; messages without a verdict are given back, no attempt counted."""


class Judge:
    """Turns verdicts and exceptions into outcomes; a message without a verdict is retried, never lost."""

    def __init__(
        self, policy: AckPolicy, options: SubscriberOptions, render: LastExceptionRenderer | None, monitor: Monitor
    ) -> None:
        self._policy = policy
        self._strategy = options.retry_strategy or DEFAULT_RETRY
        self._on_dead = options.on_dead
        self._render = render or render_traceback
        self._monitor = monitor

    def outcome(self, delivery: OutboxDelivery, error: BaseException | None) -> Outcome:
        """Return the outcome of a row after its handler returned, or raised `error`."""
        match delivery.verdict:
            case Ack() | Reject() if isinstance(error, _STOPS):
                # The handler stopped in the middle of the message, whatever the policy makes of exceptions.
                return Retry(0.0, delivery.attempts_count, error=error)
            case Ack() if error is not None and self._policy is AckPolicy.ACK:
                # This policy drops a message that failed; it is kept as a dead letter and logged.
                return self._dead("rejected", delivery, error)
            case Ack():
                return Ack(delivery.outputs) if delivery.outputs else HANDLED
            case Reject():
                return self._dead("rejected", delivery, error)
            case Nack(delay, alone):
                return self._failed(delivery, error, delay=delay, batch_size=1 if alone else delivery.batch_size)
            case None:
                return self._undecided(delivery, error)

    def excuse(self, delivery: OutboxDelivery, error: BaseException) -> Retry | None:
        """Return a retry that counts no attempt, if the handler's transaction was lost in an outage of the database.

        A message may be what ends the connection: only some deliveries are excused in a row.
        """
        uncounted = delivery.deliveries_count - delivery.attempts_count
        if isinstance(error, _STOPS) or uncounted > _MOST_EXCUSED or not is_outage(error):
            return None
        return Retry(0.0, delivery.attempts_count, error=_kept(error))

    def _undecided(self, delivery: OutboxDelivery, error: BaseException | None) -> Outcome:
        if isinstance(error, Interrupted):
            return Retry(0.0, delivery.attempts_count, error=error)
        if error is None:
            message = (
                f"The handler of row {delivery.id} (queue {delivery.queue}) returned without a verdict, which counts "
                "as a failure: call ack(), nack() or reject() on the message."
            )
            self._report("no_verdict", message, delivery)
        return self._failed(delivery, error, delay=None, batch_size=delivery.batch_size)

    def report_failed_commit(self, deliveries: Sequence[OutboxDelivery], error: Exception) -> None:
        """Log why a handler's transaction was not committed; the handler has returned and logged nothing."""
        first = deliveries[0]
        message = (
            f"Could not commit the transaction of the handler of row {first.id} (queue {first.queue}); it was rolled "
            f"back: {self._monitor.describe(error)}"
        )
        self._report("commit_failed", message, first, error)

    def _report(self, event: str, message: str, delivery: OutboxDelivery, error: Exception | None = None) -> None:
        level = logging.WARNING if error is None else logging.ERROR
        self._monitor.report(event, message, level=level, error=error, row_id=delivery.id, queue=delivery.queue)

    def _failed(
        self, delivery: OutboxDelivery, error: BaseException | None, *, delay: float | None, batch_size: int
    ) -> Outcome:
        # In a batch another message may be the cause. All failures in batches together count as one attempt, however
        # often the batch is halved, and only a message that failed alone is given up.
        attempts = delivery.attempts_count + 1 if batch_size == 1 else max(1, delivery.attempts_count)
        if delay is None:
            delay = self._ask_strategy(delivery, error, attempts)
        if delay is None and batch_size == 1:
            return self._dead("retry_terminal", delivery, error)
        failure = None if error is None else self._line(error)
        return Retry(delay or 0.0, attempts, error=_kept(error), batch_size=batch_size, failure=failure)

    def _ask_strategy(self, delivery: OutboxDelivery, error: BaseException | None, attempts: int) -> float | None:
        now = delivery.database_now()
        attempt = {
            "first_attempt_at": min(delivery.first_attempt_at or now, now),
            "last_attempt_at": now,
            "attempts_count": attempts,
            "exception": error,
        }
        try:
            return next_delay(self._strategy, **attempt)
        except Exception as failure:  # noqa: BLE001 - the row must be settled whatever the user's strategy does
            row, name = f"row {delivery.id} (queue {delivery.queue})", type(self._strategy).__name__
            if isinstance(failure, UnusableAnswerError):
                what = f"{name} returned {describe(failure.answer)} for {row}, and {failure.expected}"
            else:
                what = f"{name} raised {type(failure).__name__} for {row}"
            message = f"{what}; the default strategy decided instead."
            self._report("retry_strategy_failed", message, delivery, failure)
            return next_delay(DEFAULT_RETRY, **attempt)

    def _dead(self, reason: FailureReason, delivery: OutboxDelivery, error: BaseException | None) -> Dead | Park:
        now = delivery.database_now()
        dead = Dead(
            reason,
            None if error is None else self._text(error),
            delivery.attempts_count + 1,
            first_attempt_at=delivery.first_attempt_at or now,
            last_attempt_at=now,
            error=_kept(error),
        )
        return give_up(delivery, dead, self._on_dead)

    def _text(self, error: BaseException) -> str | None:
        return clean_exception_text(render(self._render, error))  # cut now: it may be large, and waits to be written

    def _line(self, error: BaseException) -> str | None:
        """Return the first line of what a dead letter would keep; the default needs no traceback for it."""
        text = render(_summary if self._render is render_traceback else self._render, error)
        return None if text is None else text.partition("\n")[0][:_LONGEST_LINE]


def _kept(error: BaseException | None) -> Raised | None:
    """Return what an outcome keeps of an error until it is written.

    The type is enough for metrics; the exception would keep the handler's frames, and all they refer to, alive.
    """
    return error if error is None or isinstance(error, PlainError) else type(error)


def _summary(error: BaseException) -> str:
    what = "".join(traceback.format_exception_only(error))
    return f"{what[:_LONGEST_SUMMARY]}…\n" if len(what) > _LONGEST_SUMMARY else what


def render_traceback(error: BaseException) -> str:
    """Return the exception and its traceback as text; the exception comes first, where no cut removes it."""
    what = _summary(error)
    if error.__traceback__ is None and error.__cause__ is error.__context__ is None:
        return what  # it was never raised, so it has no traceback
    return f"{what}\n{''.join(traceback.format_exception(error))}"
