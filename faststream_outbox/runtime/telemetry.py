"""Writes every log record and every metric: a monitor, and the events of rows with their fields."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from faststream_outbox.storage import Ack, Dead, NewRow, OutboxRow, Outcome, Park, Retry
from faststream_outbox.storage.errors import without_values
from faststream_outbox.storage.outcomes import Raised

LOGGER = logging.getLogger("faststream_outbox")

# recorder(event, tags). It is called on the event loop, so it must not block.
Recorder = Callable[[str, Mapping[str, Any]], None]

# Returns the text of an error for the log and the dead-letter table; None leaves it out.
ErrorRenderer = Callable[[BaseException], str | None]

# What ends the program, from wherever it is raised. Every other error of a user's function stays where it was called,
# also one that is no `Exception`, such as the panic of a recorder that is written in Rust.
_ENDS_PROGRAM: Final = (KeyboardInterrupt, SystemExit)

# Where a lease was lost: before the handler ran, or when the row was deleted or rescheduled.
Phase = Literal["dispatch", "terminal", "retry"]


class LoggerLike(Protocol):
    """What a monitor needs of a logger: `logging.Logger` has it, and so has FastStream's proxy of one."""

    def log(self, level: int, msg: Any, /, *, exc_info: Any = None, extra: Mapping[str, Any] | None = None) -> None:
        """Write a record."""


def describe(value: object) -> str:
    """Return the start of the repr of an error, or of any value; one whose `__repr__` raises is named by its type.

    An error of the database is shown without values of rows.
    """
    try:
        return repr(without_values(value) if isinstance(value, BaseException) else value)[:500]
    except Exception:  # noqa: BLE001 - a user's `__repr__` may raise anything
        return f"{type(value).__name__} (its repr fails)"


def render(renderer: ErrorRenderer, error: BaseException) -> str | None:
    """Return the text that the user's renderer makes of an error; if that raises, the name of its type."""
    try:
        text = renderer(error)
    except _ENDS_PROGRAM:
        raise
    except BaseException as failure:  # noqa: BLE001 - a row must be settled whatever the renderer does
        # The error's own text is left out: the renderer may be there to redact it.
        return f"{type(error).__name__} (last_exception_renderer raised {type(failure).__name__})"
    return text if text is None or isinstance(text, str) else str(text)


class PlainError(Exception):
    """An error whose text may be logged: it holds nothing of a message's content."""


class Monitor:
    """Writes the log records and the metrics of one subscriber, or of one part of a broker.

    A recorder or a logger that raises must not keep a row from being settled, so the error stays here. That of a
    recorder is logged once per monitor, as `metrics_failed`. A record that the logger refuses goes to the logger
    "faststream_outbox".

    Args:
        get_logger: Returns the logger; a broker has its own only after it is connected.
        recorder: The user's metrics recorder.
        renderer: The user's renderer of errors; without one a record has the error itself, without values of rows.
        subscriber: The name of the subscriber, in every metric and in every record that is not about one row.
        queues: Its queues, in every record that is not about one row.

    """

    def __init__(
        self,
        *,
        get_logger: Callable[[], LoggerLike] = lambda: LOGGER,
        recorder: Recorder | None = None,
        renderer: ErrorRenderer | None = None,
        subscriber: str = "",
        queues: Sequence[str] = (),
    ) -> None:
        self._get_logger = get_logger
        self._recorder = recorder
        self._renderer = renderer
        self._recorder_failed = False
        self._tags = {"subscriber": subscriber} if subscriber else {}
        self._origin = {**self._tags, "queue": ",".join(queues)} if queues else self._tags

    @property
    def counts(self) -> bool:
        """Whether there is a recorder; without one, callers need not gather what it would be given."""
        return self._recorder is not None

    def logs_at(self, level: int) -> bool:
        """Return whether records of this level are written; if not, callers need not make their text."""
        logger: Any = self._get_logger()
        logger = getattr(logger, "logger", logger)  # FastStream's proxy holds the user's logger, or None
        return logger.isEnabledFor(level) if isinstance(logger, logging.Logger) else logger is not None

    def report(
        self,
        event: str,
        message: str,
        *,
        level: int = logging.WARNING,
        error: BaseException | None = None,
        **fields: Any,
    ) -> None:
        """Write a log record; `fields` are what a log pipeline filters by."""
        extra = {"event": event, **fields}
        if "row_id" not in fields:
            extra = {**self._origin, **extra}
        shown = None if error is None else without_values(error)
        if error is not None and self._renderer is not None:
            text, shown = render(self._renderer, error), None
            message = f"{message}\n{text}" if text else message
        try:
            self._get_logger().log(level, message, extra=extra, exc_info=shown)
        except _ENDS_PROGRAM:
            raise
        except BaseException:
            LOGGER.log(level, message, extra=extra, exc_info=shown)

    def describe(self, error: BaseException) -> str:
        """Return the start of an error's repr; of an error that the user's renderer shows, the name of its type."""
        return describe(error) if self._renderer is None else type(error).__name__

    def record(self, event: str, **tags: Any) -> None:
        """Give an event to the recorder."""
        if self._recorder is None:
            return
        try:
            self._recorder(event, {**self._tags, **tags})
        except _ENDS_PROGRAM:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's recorder may raise anything
            if not self._recorder_failed:  # it will fail on the next row too
                self._recorder_failed = True
                message = f"The metrics recorder raised on {event!r}; it is called again, and this is logged once: "
                self.report("metrics_failed", message + describe(error), error=error)


class RowEvents:
    """Reports what happens to rows.

    Each row that is `dispatched` gets exactly one event with `duration_seconds`, when it leaves the ledger.
    """

    def __init__(self, monitor: Monitor, *, keeps_dead: bool) -> None:
        self.monitor = monitor
        self._keeps_dead = keeps_dead

    def claimed(self, queues: Sequence[str], rows: Sequence[OutboxRow]) -> None:
        """Report the rows of a claim, by queue; an empty claim is reported for the first of `queues`."""
        if not self.monitor.counts:
            return
        counts = Counter(row.queue for row in rows) or {queues[0]: 0}
        for queue, count in counts.items():
            self.monitor.record("fetched", queue=queue, count=count)

    def contended(self, queue: str, count: int) -> None:
        """Report keys that a claim wanted and that another claimer had first; they are counted, not logged."""
        self.monitor.record("keys_contended", queue=queue, count=count)

    def dispatched(self, rows: Sequence[OutboxRow]) -> None:
        """Report rows that a handler is about to be called with."""
        if self.monitor.counts:
            for held in rows:
                self.monitor.record("dispatched", **_row_tags(held), size_bytes=len(held.payload))

    def settled(self, rows: Sequence[OutboxRow], outcomes: Sequence[Outcome]) -> None:
        """Report the outcome that was written for each row."""
        # Handled rows are not logged, and retries only at INFO: without a recorder most rows need no event.
        unlogged: tuple[type[Outcome], ...] = (Ack,) if self.monitor.logs_at(logging.INFO) else (Ack, Retry)
        counts = self.monitor.counts
        for held, outcome in zip(rows, outcomes, strict=True):
            if counts or not isinstance(outcome, unlogged):
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
                message = f"Row {_name(held)} will be tried again in {delay:.1f} s{_because(error)}."
                self._log("retry_scheduled", message, logging.INFO, held, delay=delay, attempts=attempts)
            case Dead(reason=reason, error=error):
                self.monitor.record("nacked_terminal", **tags, reason=reason, **_exception_type(error))
                self._dead(held, outcome)
            case Park(Dead(reason=reason, error=error)):
                self.monitor.record("nacked_terminal", **tags, reason=reason, **_exception_type(error))
                self._parked(held, reason, error)

    def _published(self, outputs: Sequence[NewRow]) -> None:
        for queue, count in Counter(row.queue for row in outputs).items():
            size = sum(len(row.payload) for row in outputs if row.queue == queue)
            self.monitor.record("published", queue=queue, status="success", count=count, size_bytes=size)

    def _dead(self, held: OutboxRow, outcome: Dead) -> None:
        reason, kept = outcome.reason, self._keeps_dead
        if kept:
            tags = {**_row_tags(held), **_exception_type(outcome.error)}
            self.monitor.record("dlq_written", **tags, failure_reason=reason)
        end = "and was moved to the dead-letter table" if kept else "and is gone, because there is no dead-letter table"
        message = f"Row {_name(held)} failed for good ({reason}{_because(outcome.error)}) {end}."
        self._log("dead_lettered", message, logging.ERROR, held, reason=reason, kept=kept)

    def _parked(self, held: OutboxRow, reason: str, error: Raised | None) -> None:
        key = held.entity_key
        message = (
            f"Row {_name(held)} failed for good ({reason}{_because(error)}), and its key {key!r} is parked until an "
            "operator calls retry_key, release_key or skip_key."
        )
        self._log("key_parked", message, logging.WARNING, held, key=key, reason=reason)

    def lost(self, held: OutboxRow, phase: Phase) -> None:
        """Report a row whose lease ran out, so that another process may have it."""
        if phase == "dispatch":
            message = f"Lost the lease on row {_name(held)} while it waited for a worker; it will be claimed again."
        else:
            message = f"Lost the lease on row {_name(held)} before settling; the outcome was discarded."
        self.monitor.record("lease_lost", **_row_tags(held), phase=phase, **_duration(held))
        deliveries = held.deliveries_count
        self._log("lease_lost", message, logging.WARNING, held, phase=phase, deliveries_count=deliveries)

    def abandoned(self, held: OutboxRow) -> None:
        """Report a row whose outcome could not be written, and that is left to its lease."""
        self.given_back(held)
        message = f"Could not write the outcome of row {_name(held)}; it is delivered again when its lease runs out."
        self._log("settle_failed", message, logging.ERROR, held)

    def given_back(self, held: OutboxRow) -> None:
        """Report a row that was released without an outcome; it is counted, not logged."""
        if held.dispatched:
            self.monitor.record("dispatch_abandoned", **_row_tags(held), **_duration(held))

    def _log(self, event: str, message: str, level: int, held: OutboxRow, **fields: Any) -> None:
        self.monitor.report(event, message, level=level, row_id=held.id, queue=held.queue, **fields)


def phase_of(outcome: Outcome) -> Phase:
    """Return the phase in which a row with this outcome is settled."""
    return "retry" if isinstance(outcome, Retry) else "terminal"


def _name(held: OutboxRow) -> str:
    return f"{held.id} (queue {held.queue})"


def _row_tags(held: OutboxRow) -> dict[str, Any]:
    return {"queue": held.queue, "deliveries_count": held.deliveries_count}


def _duration(held: OutboxRow) -> dict[str, float]:
    return {"duration_seconds": held.duration} if held.dispatched else {}


def _because(error: Raised | None) -> str:
    if isinstance(error, PlainError):
        return f": {str(error).rstrip('.')}"
    return "" if error is None else f": {_type_name(error)}"


def _exception_type(error: Raised | None) -> dict[str, str]:
    return {} if error is None else {"exception_type": _type_name(error)}


def _type_name(error: Raised) -> str:
    return error.__name__ if isinstance(error, type) else type(error).__name__
