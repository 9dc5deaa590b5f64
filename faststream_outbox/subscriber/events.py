"""What a subscriber has to say of its own running, one record per event, for logs and metrics alike."""

import logging
from collections.abc import Callable
from typing import Any

# report(event, message, level=…, error=…, **fields): `fields` are what a log pipeline filters by.
Report = Callable[..., None]

LOGGER = logging.getLogger("faststream_outbox")


def log_event(
    event: str, message: str, *, level: int = logging.WARNING, error: BaseException | None = None, **fields: Any
) -> None:
    """Write an event to the library's own logger."""
    LOGGER.log(level, message, exc_info=error, extra={"event": event, **fields})
