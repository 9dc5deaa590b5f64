"""Pauses and resumes queues in the control table."""

from datetime import UTC, datetime
from typing import Any

from faststream_outbox.storage.operating.control import CONTROL_CHANGED, Pause, Pausing
from faststream_outbox.storage.postgres.admin import Execute
from faststream_outbox.storage.postgres.notifications import NOTIFY
from faststream_outbox.storage.postgres.statements.control import ControlStatements


class PostgresPausing(Pausing):
    """Writes and reads the control table by statements on the session that is given."""

    def __init__(self, execute: Execute, statements: ControlStatements, channel: str) -> None:
        self._execute = execute
        self._statements = statements
        self._channel = channel

    def pause(self, session: Any, queue: str, until: datetime | None, *, by: str, reason: str) -> Pause:
        """Pause a queue, or change the pause that it has."""
        ends = None if until is None else until.timestamp()
        given = {"queue": queue, "until": ends, "reason": reason, "by": by}
        [[since]] = self._execute(session, self._statements.pause, **given)
        self._notify(session)
        return Pause(queue, until, reason, by, _time(since))

    def resume(self, session: Any, queue: str) -> bool:
        """Resume a queue; return whether it was paused."""
        found = self._execute(session, self._statements.resume, queue=queue)
        if found:
            self._notify(session)
        return any(lasted for (lasted,) in found)

    def read(self, session: Any) -> list[Pause]:
        """Return the pauses that are not over, by queue."""
        return [
            Pause(queue, None if until is None else _time(until), reason, by, _time(since))
            for queue, until, reason, by, since in self._execute(session, self._statements.read)
        ]

    def _notify(self, session: Any) -> None:
        self._execute(session, NOTIFY, channel=self._channel, payloads=[CONTROL_CHANGED])


def _time(epoch: float) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)
