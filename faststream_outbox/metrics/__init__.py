"""What a broker counts: one callable, called with an event's name and its tags."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from faststream_outbox._faststream import LoggerState

# recorder(event, tags). It is called on the event loop, so it must not block.
MetricsRecorder = Callable[[str, Mapping[str, Any]], None]

# What the broker calls itself where metrics and traces name the messaging system.
MESSAGING_SYSTEM: Final = "outbox"


def ignore(event: str, tags: Mapping[str, Any]) -> None:
    """Record nothing."""


def emit(recorder: MetricsRecorder, event: str, tags: Mapping[str, Any], logger: LoggerState) -> None:
    """Call a recorder; what it raises is logged and forgotten, because a broken chart must not stop a message."""
    try:
        recorder(event, tags)
    except Exception as error:
        message = f"The metrics recorder raised at {event!r}: {error!r}"
        logger.log(message, logging.DEBUG, extra={"event": "metrics_failed"}, exc_info=error)
