"""The statements of acts on dead letters. None waits for a lock, and none locks a row that it does not take."""

from functools import cache

from sqlalchemy import Table

from faststream_outbox.storage.postgres.statements.admin import LETTER
from faststream_outbox.storage.postgres.statements.statement import Statement
from faststream_outbox.storage.schema.tables import quoted_name


class DeadLetterActStatements:
    """The statements for one dead-letter table."""

    def __init__(self, dlq: Table) -> None:
        self.table = dlq
        self._dlq = quoted_name(dlq.name, dlq.schema)
        self.delete = Statement(f"DELETE FROM {self._dlq} d WHERE d.id = ANY (:ids::bigint[]) RETURNING d.id")
        self.read = Statement(f"SELECT {LETTER} FROM {self._dlq} d WHERE d.id = ANY (:ids::bigint[])")
        self.upper_id = Statement(f"SELECT coalesce(max(d.id), 0) FROM {self._dlq} d")

    @cache  # noqa: B019 - the statements live as long as the process
    def lock(self, condition: str) -> Statement:
        """Return the statement that locks those of the rows that match and that no other transaction has locked."""
        return Statement(f"""SELECT d.id FROM {self._dlq} d
 WHERE d.id = ANY (:ids::bigint[]) AND {condition} FOR UPDATE OF d SKIP LOCKED""")

    @cache  # noqa: B019 - same
    def explain(self, condition: str) -> Statement:
        """Return the statement that says of rows that were not locked whether they match."""
        return Statement(f"SELECT d.id, {condition} FROM {self._dlq} d WHERE d.id = ANY (:ids::bigint[])")
