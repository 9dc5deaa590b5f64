"""What the program logs: a JSON object per line for machines, a line of text for people."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

from faststream_outbox.cli.passwords import hide
from faststream_outbox.cli.repeats import Repeats

LOGGER: Final = logging.getLogger("faststream_outbox.relay")

# What every record has: anything else was given as `extra`.
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, event, message, then what else is known."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        extra = {name: _clean(value) for name, value in vars(record).items() if name not in _USUAL}
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": extra.pop("event", None),
            "message": hide(record.getMessage()),
            **extra,
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = hide(self.formatException(record.exc_info))
        return json.dumps({name: value for name, value in line.items() if value is not None}, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, message; a traceback only where somebody debugs."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        if not self._tracebacks:
            record = logging.makeLogRecord(vars(record) | {"exc_info": None, "exc_text": None})
        return hide(super().format(record))


class StderrHandler(logging.Handler):
    """Writes to what is `sys.stderr` at the moment: a view in the terminal takes its place for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - as logging's own handlers do
            self.handleError(record)


def set_up_logging(*, level: str, json_lines: bool) -> None:
    """Send every log of the process one way: our own from `level` up, those of libraries from WARNING up."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if json_lines else TextFormatter(tracebacks=level == "debug"))
    number = logging.getLevelNamesMapping()[level.upper()]
    handler.setLevel(number)
    if level != "debug":
        handler.addFilter(Repeats())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    # Others listen here too, whatever is printed.
    LOGGER.setLevel(min(number, logging.INFO))


def _clean(value: object) -> object:
    return hide(value) if isinstance(value, str) else value
