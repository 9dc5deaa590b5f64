"""Keeps libraries from saying the same thing ten times a second, as some do while a server is down."""

import logging
import re
import time
from collections.abc import Callable
from typing import Final

_OURS: Final = "faststream_outbox"
# What differs between two records that say the same: counts, ports of clients, addresses of objects.
_VARYING: Final = re.compile(r"0x[0-9a-f]+|\d+")
# Often enough that whoever looks at the end of a log sees it.
_AGAIN_AFTER_SECONDS: Final = 60.0
# No library says more different things in a minute; should one do so, all is let through again.
_MOST: Final = 1000


class Repeats(logging.Filter):
    """Lets what others log through once a minute, and all of our own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said_at: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is news."""
        if record.name.partition(".")[0] == _OURS:
            return True
        said = record.name, _VARYING.sub("", record.getMessage())
        now = self._clock()
        if now - self._said_at.get(said, -_AGAIN_AFTER_SECONDS) < _AGAIN_AFTER_SECONDS:
            return False
        if len(self._said_at) >= _MOST:
            self._said_at.clear()
        self._said_at[said] = now
        return True
