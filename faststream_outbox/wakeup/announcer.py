"""Tells that handlers' outputs were written: the own claimer, and whoever else listens."""

from collections.abc import Callable, Iterable

from faststream_outbox.runtime.events import Monitor, describe

# Wakes whoever listens to these queues.
Announce = Callable[[Iterable[str]], None]


class Announcer:
    """Wakes by itself who is near; `announce` reaches the others."""

    def __init__(
        self, queues: Iterable[str], wake: Callable[[], None], announce: Announce | None, monitor: Monitor
    ) -> None:
        self._queues = frozenset(queues)
        self._wake = wake
        self._announce = announce
        self._monitor = monitor

    def announce(self, queues: Iterable[str]) -> None:
        """Say that these queues have new rows."""
        queues = frozenset(queues)
        if queues & self._queues:
            self._wake()
        if self._announce is None:
            return
        try:
            self._announce(queues)
        except Exception as error:  # noqa: BLE001 - the rows are written, and polling finds them
            message = f"New rows could not be announced: {describe(error)}"
            self._monitor.report("announce_failed", message, error=error)
