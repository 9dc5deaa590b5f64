"""From what a handler did with a message to what becomes of its row."""

import logging
import traceback
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from faststream.exceptions import StopConsume
from faststream.middlewares import AckPolicy

from faststream_outbox.configs import LastExceptionRenderer
from faststream_outbox.engine.options import OnDead, give_up
from faststream_outbox.message import Acked, Nacked, OutboxDelivery, Rejected
from faststream_outbox.retry import DEFAULT_RETRY, RetryDelayProto, RetryStrategyProto
from faststream_outbox.runtime.telemetry import Monitor, PlainError, describe
from faststream_outbox.storage import HANDLED, Ack, Dead, FailureReason, Outcome, Park, Retry
from faststream_outbox.storage.checks import check_number

# Of an exception's own text; the whole text is cut to 8 KiB when it is stored, in the middle.
_LONGEST_SUMMARY: Final = 1024
# By what a handler says that it goes no further.
_STOPS: Final = (StopConsume, SystemExit)


class Interrupted(Exception):  # noqa: N818 - nobody's fault
    """The time for draining was over before the handler was: what it had not decided by then is not held against it."""


class Judge:
    """Turns verdicts into outcomes; a message without a verdict is never lost for it."""

    def __init__(
        self,
        policy: AckPolicy,
        strategy: RetryStrategyProto | RetryDelayProto,
        render: LastExceptionRenderer | None,
        monitor: Monitor,
        *,
        on_dead: OnDead = "skip",
    ) -> None:
        self._policy = policy
        self._strategy = strategy
        self._render = render or render_traceback
        self._monitor = monitor
        self._on_dead: OnDead = on_dead

    def outcome(self, delivery: OutboxDelivery, error: BaseException | None) -> Outcome:
        """Say what becomes of a row after its handler returned, or raised `error`."""
        match delivery.verdict:
            case Acked() | Rejected() if isinstance(error, _STOPS):
                # Whoever stops in the middle has not handled the message, whatever the policy makes of exceptions.
                return Retry(0.0, delivery.attempts_count, error=error)
            case Acked() if error is not None and self._policy is AckPolicy.ACK:
                # This policy lets go of a message that failed; it is kept where dead ones are, and said aloud.
                return self._dead("rejected", delivery, error)
            case Acked():
                return Ack(delivery.outputs) if delivery.outputs else HANDLED
            case Rejected():
                return self._dead("rejected", delivery, error)
            case Nacked(delay, alone):
                return self._failed(delivery, error, delay=delay, company=1 if alone else delivery.company)
            case None:
                return self._undecided(delivery, error)

    def _undecided(self, delivery: OutboxDelivery, error: BaseException | None) -> Outcome:
        if isinstance(error, Interrupted):
            return Retry(0.0, delivery.attempts_count, error=error)
        if error is None:
            self._tell_of_no_verdict(delivery)
        return self._failed(delivery, error, delay=None, company=delivery.company)

    def tell_of_failed_commit(self, deliveries: Sequence[OutboxDelivery], error: Exception) -> None:
        """Say why a handler's transaction could not be committed: the handler has returned, and logged nothing."""
        first = deliveries[0]
        self._monitor.report(
            "commit_failed",
            f"The transaction of the handler of row {first.id} could not be committed, so all of it is rolled back: "
            f"{describe(error)}",
            level=logging.ERROR,
            error=error,
            row_id=first.id,
            queue=first.queue,
        )

    def _tell_of_no_verdict(self, delivery: OutboxDelivery) -> None:
        self._monitor.report(
            "no_verdict",
            f"The handler of row {delivery.id} gave no verdict, so it counts as failed: it has to call "
            "ack(), nack() or reject() on its message.",
            level=logging.WARNING,
            row_id=delivery.id,
            queue=delivery.queue,
        )

    def _failed(
        self, delivery: OutboxDelivery, error: BaseException | None, *, delay: float | None, company: int
    ) -> Outcome:
        # Others may be to blame for what happened in company: it counts as a first attempt, and no more, however often
        # the call is halved; and given up is only what failed alone.
        attempts = delivery.attempts_count + 1 if company == 1 else max(1, delivery.attempts_count)
        if delay is None:
            delay = self._ask_strategy(delivery, error, attempts)
        if delay is None and company == 1:
            return self._dead("retry_terminal", delivery, error)
        kept = error if error is None or isinstance(error, PlainError) else type(error)
        return Retry(delay or 0.0, attempts, error=kept, company=company)

    def _ask_strategy(self, delivery: OutboxDelivery, error: BaseException | None, attempts: int) -> float | None:
        now = delivery.database_now()
        attempt = {
            "first_attempt_at": min(delivery.first_attempt_at or now, now),
            "last_attempt_at": now,
            "attempts_count": attempts,
            "exception": error,
        }
        try:
            return _delay(self._strategy, now, attempt)
        except Exception as failure:  # noqa: BLE001 - the row must be settled whatever the user's strategy does
            self._monitor.report(
                "retry_strategy_failed",
                f"{type(self._strategy).__name__} failed on row {delivery.id}, so the default strategy decides: "
                f"{type(failure).__name__}",
                level=logging.ERROR,
                error=failure,
                row_id=delivery.id,
                queue=delivery.queue,
            )
            return _delay(DEFAULT_RETRY, now, attempt)

    def _dead(self, reason: FailureReason, delivery: OutboxDelivery, error: BaseException | None) -> Dead | Park:
        now = delivery.database_now()
        dead = Dead(
            reason,
            None if error is None else self._text(error),
            delivery.attempts_count + 1,
            first_attempt_at=delivery.first_attempt_at or now,
            last_attempt_at=now,
            error=error,
        )
        return give_up(delivery, dead, self._on_dead)

    def _text(self, error: BaseException) -> str | None:
        try:
            text = self._render(error)
        except Exception as failure:  # noqa: BLE001 - nor may the user's renderer
            # Not the text it was to redact.
            return f"{type(error).__name__} (last_exception_renderer raised {type(failure).__name__})"
        return text if text is None or isinstance(text, str) else str(text)


def render_traceback(error: BaseException) -> str:
    """Render what a handler raised, and where it did; what it is stands first, where no cut will take it away."""
    what = "".join(traceback.format_exception_only(error))
    if len(what) > _LONGEST_SUMMARY:
        what = f"{what[:_LONGEST_SUMMARY]}…\n"
    if error.__traceback__ is None and error.__cause__ is error.__context__ is None:
        return what  # It was never raised, so there is nothing more to tell.
    return f"{what}\n{''.join(traceback.format_exception(error))}"


def _delay(strategy: Any, now: datetime, attempt: dict[str, Any]) -> float | None:
    ask = getattr(strategy, "get_next_attempt_at", None)
    if ask is None:
        seconds = strategy.get_next_attempt_delay(**attempt)
        return None if seconds is None else check_number("A delay", seconds)
    at = ask(**attempt)
    return None if at is None else max(0.0, (at - now).total_seconds())
