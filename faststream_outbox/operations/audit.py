"""The audit: who did what, when, why, and to how many rows."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from faststream_outbox.operations.base import OperationsBase, OperationsTableError, current_user
from faststream_outbox.operations.views import Page
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_count, check_name, check_reason
from faststream_outbox.storage.operating.acts import AuditFilter, AuditRow
from faststream_outbox.storage.rows import to_datetime


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One act of an operator.

    Attributes:
        id: Its number.
        at: When the act began.
        by: Who did it.
        action: What was done, such as `"discard"`.
        reason: Why.
        target: What it was done to: a queue, a key, or a selection.
        count: How many rows it has changed.

    """

    id: int
    at: datetime
    by: str
    action: str
    reason: str
    target: dict[str, Any]
    count: int

    @classmethod
    def of(cls, row: AuditRow) -> "AuditEntry":
        """Return a row of the audit table as operators see it."""
        return cls(row.id, to_datetime(row.at), row.by, row.action, row.reason, row.target, row.count)


@dataclass(slots=True)
class ActAudit:
    """What the audit says of an act that runs; its row is written with the first slice that changes something."""

    action: str
    by: str
    reason: str
    target: Mapping[str, Any]
    # The row, once its transaction is committed or, in the caller's transaction, written.
    audit_id: int | None = None
    written: int | None = field(default=None, repr=False)

    def committed(self) -> None:
        """Keep the id of the row: the transaction that wrote it is committed."""
        self.audit_id = self.written


class AuditOperations(OperationsBase):
    """Writes and reads the audit."""

    async def audit(
        self,
        where: AuditFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
        session: SessionOrConnection | None = None,
    ) -> Page[AuditEntry]:
        """Return what operators did, the newest first.

        Args:
            where: Entries that match; by default all.
            after: The `after` of the page before.
            limit: The largest number of entries.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            page = await operations.audit(AuditFilter(queue="orders"))
            for entry in page.items:
                print(entry.at, entry.by, entry.action, entry.count, entry.reason)

        """
        if self.audit_table is None and self._store.acts.audit_needs_table:
            raise OperationsTableError("The audit", "audit_table")
        check_count("limit", limit)
        before_id = None if after is None else int(after)
        rows, following = await self._read(
            session,
            self._store.acts.read_audit,
            self.audit_table,
            where or AuditFilter(),
            before_id=before_id,
            limit=limit,
        )
        complete = following is None or len(rows) == limit
        return Page([AuditEntry.of(row) for row in rows], None if following is None else str(following), complete)

    def _begin_audit(self, action: str, *, by: str | None, reason: str, target: Mapping[str, Any]) -> ActAudit:
        """Check who acts and why, before anything is changed."""
        check_reason(reason)
        return ActAudit(action, current_user() if by is None else check_name("by", by), reason, target)

    async def _write_audit(self, session: SessionOrConnection | None, audit: ActAudit, count: int) -> None:
        """Write that `count` rows were changed, in the transaction that changes them; nothing for none."""
        if not count:
            return
        acts = self._store.acts
        if audit.written is None:
            audit.written = await self._store.run(
                session,
                acts.add_audit,
                self.audit_table,
                by=audit.by,
                action=audit.action,
                reason=audit.reason,
                target=dict(audit.target),
                count=count,
            )
        else:
            await self._store.run(session, acts.raise_audit, self.audit_table, audit.written, count)

    def _log_act(self, audit: ActAudit, count: int, *, of: str | None = None) -> None:
        """Log an act that no table keeps; `of` says what was changed, if it was not rows."""
        if self.audit_table is not None or not count:
            return
        rows = of or ("1 row" if count == 1 else f"{count} rows")
        self.monitor.report(
            "operator_action",
            f"{audit.by} did {audit.action} to {rows}: {audit.reason}",
            level=logging.INFO,
            action=audit.action,
            by=audit.by,
            reason=audit.reason,
            target=dict(audit.target),
            count=count,
        )
