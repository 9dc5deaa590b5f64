"""The metrics of a broker: one callable, the recorder, is given the name of each event and its tags."""

import inspect
from collections.abc import Mapping
from typing import Any, Final

from faststream_outbox.runtime.telemetry import Recorder
from faststream_outbox.storage.checks import check_number

MetricsRecorder = Recorder
"""A function of an event and its tags. It is called on the event loop, so it must not block."""
Tags = Mapping[str, Any]

# The name of the messaging system in metrics and traces.
MESSAGING_SYSTEM: Final = "outbox"

# A recorder with an attribute `backlog_interval` is given the event `backlog`, the numbers of rows of every queue, that
# often (in seconds). Our recorders use this interval, in which Prometheus commonly scrapes.
BACKLOG_INTERVAL: Final = 15.0
# The tags of that event: the states in which rows are counted.
STATES: Final = ("ready", "scheduled", "in_flight", "expired", "blocked", "dead")
# Its other tags, of which each recorder makes a gauge: tag, unit and description.
GAUGES: Final = (
    ("oldest_ready_age", "s", "How long the oldest row that could be claimed has waited"),
    ("oldest_due_age", "s", "For how long the oldest row has been due that is ready, in flight or expired"),
    ("oldest_age", "s", "How long ago the oldest row was published"),
    ("blocked_keys", "key", "Keys whose first row waits, or failed"),
    ("parked_keys", "key", "Keys that wait for an operator"),
)
# The events that each recorder counts for the outbox itself: event, name and unit of the counter, and description.
COUNTERS: Final = (
    ("fetched", "fetch.batches", "batch", "Claims of rows"),
    ("keys_contended", "keys_contended", "key", "Keys that a claim wanted and another claimer had first"),
    ("nacked_retried", "retried", "event", "Rows scheduled again after a failure"),
    ("lease_lost", "lease_lost", "event", "Rows whose lease was lost"),
    ("dlq_written", "dlq_written", "event", "Rows moved to the dead-letter table"),
    ("drain_timeout", "drain_timeout", "event", "Stops that ran out of time"),
)


def check_interval(seconds: float | None) -> float | None:
    """Return a `backlog_interval`, or raise if it is too short: counting reads the table, so a second is the least."""
    return None if seconds is None else check_number("backlog_interval", seconds, least=1.0)


def check_recorder(recorder: object) -> None:
    """Raise `TypeError` if a recorder cannot be called, or would have to be awaited."""
    if recorder is None:
        return
    if not callable(recorder):
        raise TypeError(
            f"metrics_recorder is a function of an event and its tags; {type(recorder).__name__} cannot be called."
        )
    if inspect.iscoroutinefunction(recorder) or inspect.iscoroutinefunction(getattr(recorder, "__call__", None)):  # noqa: B004 - asks for its kind, not whether it can be called
        raise TypeError(
            "metrics_recorder is a plain function, because it is not awaited. Start a task in it if it has to wait."
        )
