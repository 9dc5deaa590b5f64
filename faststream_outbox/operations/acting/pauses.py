"""Pause and resume queues: every subscriber and relay of every process obeys within a second."""

from datetime import UTC, datetime

from faststream_outbox.operations.audit import ActAudit, AuditOperations
from faststream_outbox.operations.base import OperationsTableError
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.operating.control import Pause, Pausing


class PauseOperations(AuditOperations):
    """Pauses and resumes queues; needs the control table, which the subscribers and relays must have too."""

    async def pauses(self, *, session: SessionOrConnection | None = None) -> list[Pause]:
        """Return the queues that are paused now, by name.

        Args:
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            for pause in await operations.pauses():
                print(pause.queue, pause.until, pause.by, pause.reason)

        """
        return await self._read(session, self._pausing("The list of paused queues").read)

    async def pause(
        self,
        queue: str,
        until: datetime | None = None,
        *,
        reason: str,
        by: str | None = None,
        session: SessionOrConnection | None = None,
    ) -> Pause:
        """Pause a queue, or change the pause that it has: nothing of it is claimed, and what runs ends.

        Rows that were claimed and not started are given back, and their delivery is not counted. Publishing goes on.

        Args:
            queue: The queue; it need not have rows yet.
            until: When it goes on by itself, by the clock of the database; by default when it is resumed.
            reason: Why, for the audit and the logs.
            by: Who; by default the user of this process and its host.
            session: Your `AsyncSession` or `AsyncConnection`: the pause begins with its commit.

        Example:
            await operations.pause("orders", reason="the shop is being moved")

        """
        pausing = self._pausing("Pausing a queue")
        check_name("queue", queue)
        if until is not None:
            _check_until(until)
        target = {"queue": queue} | ({} if until is None else {"until": until.isoformat()})
        audit = self._begin_audit("pause", by=by, reason=reason, target=target)
        if session is not None:
            return await self._pause(session, pausing, audit, queue, until)
        async with self._store.transaction() as own:
            return await self._pause(own, pausing, audit, queue, until)

    async def _pause(
        self,
        session: SessionOrConnection | None,
        pausing: Pausing,
        audit: ActAudit,
        queue: str,
        until: datetime | None,
    ) -> Pause:
        paused = await self._store.run(session, pausing.pause, queue, until, by=audit.by, reason=audit.reason)
        await self._write_audit(session, audit, 1)
        self._log_act(audit, 1, of=f"queue {queue}")
        return paused

    async def resume(
        self, queue: str, *, reason: str, by: str | None = None, session: SessionOrConnection | None = None
    ) -> bool:
        """Resume a queue: its rows are delivered again; return whether it was paused.

        Args:
            queue: The queue.
            reason: Why, for the audit.
            by: Who; by default the user of this process and its host.
            session: Your `AsyncSession` or `AsyncConnection`: the pause ends with its commit.

        Example:
            await operations.resume("orders", reason="the shop has moved")

        """
        pausing = self._pausing("Resuming a queue")
        audit = self._begin_audit("resume", by=by, reason=reason, target={"queue": check_name("queue", queue)})
        if session is not None:
            return await self._resume(session, pausing, audit, queue)
        async with self._store.transaction() as own:
            return await self._resume(own, pausing, audit, queue)

    async def _resume(self, session: SessionOrConnection | None, pausing: Pausing, audit: ActAudit, queue: str) -> bool:
        resumed = await self._store.run(session, pausing.resume, queue)
        if resumed:
            await self._write_audit(session, audit, 1)
            self._log_act(audit, 1, of=f"queue {queue}")
        return resumed

    def _pausing(self, purpose: str) -> Pausing:
        if self._store.pausing is None:
            raise OperationsTableError(purpose, "control_table")
        return self._store.pausing


def _check_until(until: object) -> None:
    if not isinstance(until, datetime) or until.tzinfo is None:
        raise ValueError(f"until is a datetime with a time zone, not {until!r}: use datetime.now(UTC) + timedelta(…).")
    if until <= datetime.now(UTC):
        raise ValueError(f"until is over already: {until.isoformat()}. Name a time to come, or leave it out.")
