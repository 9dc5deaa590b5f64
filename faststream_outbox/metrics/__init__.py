"""What a broker counts: one callable, called with an event's name and its tags."""

import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from faststream.exceptions import IncorrectState

from faststream_outbox._faststream import LoggerState
from faststream_outbox.storage.checks import check_number

# recorder(event, tags). It is called on the event loop, so it must not block.
MetricsRecorder = Callable[[str, Mapping[str, Any]], None]

# What the broker calls itself where metrics and traces name the messaging system.
MESSAGING_SYSTEM: Final = "outbox"

# A recorder with an attribute `backlog_interval` is told, that often (in seconds), of the rows of every queue: the
# event `backlog`. This is what the recorders here ask for: as often as Prometheus commonly asks them.
BACKLOG_INTERVAL: Final = 15.0
# The states in which rows are counted, by their tags in that event.
BACKLOG_STATES: Final = ("ready", "scheduled", "in_flight", "expired", "blocked", "dead")


def check_interval(seconds: float | None) -> float | None:
    """Refuse a `backlog_interval` that is none; counting reads the whole table, so a second is the least."""
    return None if seconds is None else check_number("backlog_interval", seconds, least=1.0)


def check_recorder(recorder: object) -> None:
    """Refuse what cannot be called, or would have to be awaited."""
    if recorder is None:
        return
    if not callable(recorder):
        raise TypeError(
            f"metrics_recorder is called with an event and its tags, and {type(recorder).__name__} cannot be."
        )
    if inspect.iscoroutinefunction(recorder) or inspect.iscoroutinefunction(getattr(recorder, "__call__", None)):  # noqa: B004 - its kind is asked for
        raise TypeError(
            "metrics_recorder is a plain function: nobody awaits it. Hand over to a task if it has to wait."
        )


def ignore(event: str, tags: Mapping[str, Any]) -> None:
    """Record nothing."""


def emit(recorder: MetricsRecorder, event: str, tags: Mapping[str, Any], logger: LoggerState) -> None:
    """Call a recorder; what it raises is logged and forgotten, because a broken chart must not stop a message."""
    try:
        recorder(event, tags)
    except Exception as error:
        message = f"The metrics recorder raised at {event!r}: {type(error).__name__}"
        with suppress(IncorrectState):  # there is no logger before the broker is connected, and one may publish before
            logger.log(message, logging.DEBUG, extra={"event": "metrics_failed"}, exc_info=error)
