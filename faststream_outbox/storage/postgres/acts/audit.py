"""The audit table of the Postgres store."""

import json
from typing import Any, Final

from sqlalchemy import Table

from faststream_outbox.storage.operating.acts import AuditFilter, AuditRow
from faststream_outbox.storage.postgres.acts.base import ActsBase
from faststream_outbox.storage.postgres.statements.acts.audit import AuditStatements, audit_statements
from faststream_outbox.storage.schema.tables import quoted_name

_BEYOND_ALL_IDS: Final = 2**63 - 1


class AuditActs(ActsBase):
    """Writes and reads the audit."""

    def add_audit(
        self, session: Any, table: Table | None, *, by: str, action: str, reason: str, target: Any, count: int
    ) -> int | None:
        """Insert one row of the audit and return its id; None if there is no table."""
        if table is None:
            return None
        entry = {"by": by, "action": action, "reason": reason, "target": json.dumps(target), "count": count}
        return int(self._execute(session, _audit(table).add, **entry)[0][0])

    def raise_audit(self, session: Any, table: Table | None, audit_id: int, count: int) -> None:
        """Add to the count of a row of the audit."""
        if table is not None:
            self._execute(session, _audit(table).raise_count, id=audit_id, count=count)

    def read_audit(
        self, session: Any, table: Table | None, where: AuditFilter, *, before_id: int | None, limit: int
    ) -> tuple[list[AuditRow], int | None]:
        """Return the entries that match, the newest first, and the id before which to go on; None at the end."""
        if table is None:
            raise ValueError("There is no audit table.")
        asked = where.given()
        before_id = _BEYOND_ALL_IDS if before_id is None else before_id
        statement = _audit(table).read(tuple(asked))
        records = self._execute(session, statement, before_id=before_id, limit=limit, **asked)
        rows = [
            AuditRow(number, at, by, action, reason, json.loads(target), count)
            for _, number, at, by, action, reason, target, count in records
            if number is not None
        ]
        return rows, records[0][0]


def _audit(table: Table) -> AuditStatements:
    return audit_statements(quoted_name(table.name, table.schema))
