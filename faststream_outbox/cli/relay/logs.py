"""The log of the program: JSON lines or text, without passwords and without repetitions of libraries."""

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from faststream_outbox.cli.secrets import hide, hide_all

LOGGER: Final = logging.getLogger("faststream_outbox.relay")

# The attributes of every record; any other was given as `extra`.
_STANDARD_ATTRIBUTES: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """Writes an object per line: time, level, event, message, then the other fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": extra.pop("event", None),
            "message": record.getMessage(),
            **extra,
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(hide_all({name: value for name, value in line.items() if value is not None}))


class TextFormatter(logging.Formatter):
    """Writes time, level and message; a traceback only at level debug."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        if not self._tracebacks:
            record = logging.makeLogRecord(vars(record) | {"exc_info": None, "exc_text": None})
        return hide(super().format(record))


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the present `sys.stderr`, which the live view replaces while it runs."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record."""
        self.stream = sys.stderr
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging calls
        """Report a record that cannot be formatted; Python would print its arguments with the secrets in them."""
        error = sys.exc_info()[1]
        line = f"A log record of {record.name} cannot be written: {type(error).__name__} at line {record.lineno} of "
        sys.stderr.write(f"{line}{record.pathname}.\n")


# What differs between two records with the same meaning: counts, ports of clients, addresses of objects.
_VARYING: Final = re.compile(r"0x[0-9a-f]+|\d+")
# Often enough that the end of a log shows a problem that lasts.
_REPEAT_SECONDS: Final = 60.0
# Bounds the memory; no library writes this many different messages in a minute.
_MOST_MESSAGES: Final = 1000


class RepeatFilter(logging.Filter):
    """Passes all of our own records, and the same message of a library once a minute.

    Some clients write the same message ten times a second while a server is down.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._written_at: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record."""
        if record.name.partition(".")[0] == "faststream_outbox":
            return True
        message = record.name, _VARYING.sub("", record.getMessage())
        now = self._clock()
        if now - self._written_at.get(message, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
            return False
        if len(self._written_at) >= _MOST_MESSAGES:
            self._written_at.clear()
        self._written_at[message] = now
        return True


def set_up_logging(*, level: str, json_lines: bool) -> None:
    """Write all logs of the process to stderr: ours from `level` up, those of libraries from WARNING up."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if json_lines else TextFormatter(tracebacks=level == "debug"))
    number = logging.getLevelNamesMapping()[level.upper()]
    handler.setLevel(number)
    if level != "debug":
        handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    logging.captureWarnings(capture=True)
    # The logger itself stays at INFO for other handlers, such as those of a tracing library.
    LOGGER.setLevel(min(number, logging.INFO))
