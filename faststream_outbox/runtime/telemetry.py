"""Tells of the life of rows in the subscriber: one place that knows which event has which fields."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from faststream_outbox.runtime.events import Monitor, PlainError
from faststream_outbox.storage import Ack, Dead, NewRow, OutboxRow, Outcome, Park, Retry
from faststream_outbox.storage.outcomes import Raised

Phase = Literal["dispatch", "terminal", "retry"]


class Journal:
    """Every `dispatched` is followed by exactly one event with `duration_seconds`: told when its row is let go of."""

    def __init__(self, monitor: Monitor, *, keeps_dead: bool) -> None:
        self.monitor = monitor
        self._keeps_dead = keeps_dead

    def claimed(self, queues: Sequence[str], rows: Sequence[OutboxRow]) -> None:
        """Tell that a claim came back."""
        if not self.monitor.counts:
            return
        counts = Counter(row.queue for row in rows) or {queues[0]: 0}
        for queue, count in counts.items():
            self.monitor.record("fetched", queue=queue, count=count)

    def dispatched(self, rows: Sequence[OutboxRow]) -> None:
        """Tell that a handler is about to run."""
        if self.monitor.counts:
            for held in rows:
                self.monitor.record("dispatched", **_row_tags(held), size_bytes=len(held.payload))

    def settled(self, rows: Sequence[OutboxRow], outcomes: Sequence[Outcome]) -> None:
        """Tell that outcomes were written, each row's."""
        # The log has nothing to tell of those that were handled, and not much of those that will be tried again.
        unheard: tuple[type[Outcome], ...] = (Ack,) if self.monitor.hears(logging.INFO) else (Ack, Retry)
        counts = self.monitor.counts
        for held, outcome in zip(rows, outcomes, strict=True):
            if counts or not isinstance(outcome, unheard):
                self._settled(held, outcome)

    def _settled(self, held: OutboxRow, outcome: Outcome) -> None:
        tags = {**_row_tags(held), **_duration(held)}
        match outcome:
            case Ack(outputs=outputs):
                self.monitor.record("acked", **tags)
                self._published(outputs)
            case Retry(attempts_count=attempts, error=error):
                delay = outcome.bounded_delay
                self.monitor.record("nacked_retried", **tags, next_delay_seconds=delay, **_exception_type(error))
                self._log(
                    *("retry_scheduled", f"Row {held.id} will be tried again in {delay:.1f} s{_because(error)}."),
                    *(logging.INFO, held),
                    delay=delay,
                    attempts=attempts,
                )
            case Dead(reason=reason, error=error):
                self.monitor.record("nacked_terminal", **tags, reason=reason, **_exception_type(error))
                self._buried(held, outcome)
            case Park(Dead(reason=reason, error=error)):
                self.monitor.record("nacked_terminal", **tags, reason=reason, **_exception_type(error))
                self._parked(held, reason, error)

    def _published(self, outputs: Sequence[NewRow]) -> None:
        for queue, count in Counter(row.queue for row in outputs).items():
            size = sum(len(row.payload) for row in outputs if row.queue == queue)
            self.monitor.record("published", queue=queue, status="success", count=count, size_bytes=size)

    def _buried(self, held: OutboxRow, outcome: Dead) -> None:
        reason = outcome.reason
        if self._keeps_dead:
            tags = {**_row_tags(held), **_exception_type(outcome.error)}
            self.monitor.record("dlq_written", **tags, failure_reason=reason)
        end = "was moved to the dead-letter table" if self._keeps_dead else "is gone: there is no dead-letter table"
        self._log(
            *(
                "dead_lettered",
                f"Row {held.id} of queue {held.queue!r} {end} ({reason}{_because(outcome.error)}).",
            ),
            *(logging.ERROR, held),
            reason=reason,
            kept=self._keeps_dead,
        )

    def _parked(self, held: OutboxRow, reason: str, error: BaseException | None) -> None:
        key = held.entity_key
        message = (
            f"Row {held.id} failed for good ({reason}{_because(error)}), and its key {key!r} of queue "
            f"{held.queue!r} is parked until somebody acts: retry_key, release_key or skip_key."
        )
        self._log("key_parked", message, logging.WARNING, held, key=key, reason=reason)

    def lost(self, held: OutboxRow, phase: Phase) -> None:
        """Tell that a row had become somebody else's."""
        if phase == "dispatch":
            message = f"Row {held.id} waited here for longer than its lease; it is left to whoever claims it next."
        else:
            message = f"Row {held.id} was somebody else's by the time it was settled; nothing was written."
        self.monitor.record("lease_lost", **_row_tags(held), phase=phase, **_duration(held))
        deliveries = held.deliveries_count
        self._log("lease_lost", message, logging.WARNING, held, phase=phase, deliveries_count=deliveries)

    def abandoned(self, held: OutboxRow) -> None:
        """Tell that a row is left to its lease, without an outcome written."""
        if held.dispatched:
            self.monitor.record("dispatch_abandoned", **_row_tags(held), **_duration(held))
        message = f"The outcome of row {held.id} was not written; it is delivered again when its lease has run out."
        self._log("settle_failed", message, logging.ERROR, held)

    def given_back(self, held: OutboxRow) -> None:
        """Tell that a row was given back by whoever had it, without a word."""
        if held.dispatched:
            self.monitor.record("dispatch_abandoned", **_row_tags(held), **_duration(held))

    def _log(self, event: str, message: str, level: int, held: OutboxRow, **fields: Any) -> None:
        self.monitor.report(event, message, level=level, row_id=held.id, queue=held.queue, **fields)


def phase_of(outcome: Outcome) -> Phase:
    """Tell at which settle a lease was lost."""
    return "retry" if isinstance(outcome, Retry) else "terminal"


def _row_tags(held: OutboxRow) -> dict[str, Any]:
    return {"queue": held.queue, "deliveries_count": held.deliveries_count}


def _duration(held: OutboxRow) -> dict[str, float]:
    return {"duration_seconds": held.duration} if held.dispatched else {}


def _because(error: Raised | None) -> str:
    if isinstance(error, PlainError):
        return f": {str(error).rstrip('.')}"
    return "" if error is None else f": {_name_of(error)}"


def _exception_type(error: Raised | None) -> dict[str, str]:
    return {} if error is None else {"exception_type": _name_of(error)}


def _name_of(error: Raised) -> str:
    return error.__name__ if isinstance(error, type) else type(error).__name__
