"""What a subscriber has to say of its own running: records for the log, facts for the metrics."""

import logging
from typing import Any

LOGGER = logging.getLogger("faststream_outbox")


def describe(error: BaseException | None) -> str:
    """Name an error in a few words, even one that cannot tell its own name."""
    try:
        return repr(error)[:500]
    except Exception:  # noqa: BLE001 - its `__repr__` is as foreign as the error is
        return f"{type(error).__name__} (its repr fails)"


class PlainError(Exception):
    """An error whose text may stand in a log: it tells nothing of what is in a message."""


class Monitor:
    """Hears everything; a subclass says where it goes, by `write_log` and `write_metric`.

    Whatever those raise stays here: a log or a metric that fails must not keep a row from being settled.
    """

    def __init__(self) -> None:
        self._metrics_failed = False

    @property
    def counts(self) -> bool:
        """Whether anybody hears what is recorded; what costs time to gather may be left out if not."""
        return True

    def hears(self, level: int) -> bool:
        """Tell whether a record of this level is written; what costs time to put in words may be left out if not."""
        del level  # nor need anybody care here
        return True

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
        try:
            self.write_log(level, message, error, {"event": event, **fields})
        except Exception:
            LOGGER.exception("The log refused a record: %s", message)

    def record(self, event: str, **tags: Any) -> None:
        """Count a fact."""
        try:
            self.write_metric(event, tags)
        except Exception as error:  # noqa: BLE001 - the user's recorder may raise anything
            if not self._metrics_failed:  # once: it will fail again with the next row
                self._metrics_failed = True
                self.report(
                    "metrics_failed", f"The metrics recorder failed on {event!r}: {describe(error)}", error=error
                )

    def write_log(self, level: int, message: str, error: BaseException | None, extra: dict[str, Any]) -> None:
        """Write to the library's own logger."""
        LOGGER.log(level, message, exc_info=error, extra=extra)

    def write_metric(self, event: str, tags: dict[str, Any]) -> None:
        """Keep nothing: here nobody counts."""
