"""Every SQL statement of the outbox, written once per table."""

from sqlalchemy import Table

from faststream_outbox.storage.postgres.statements.claim import ClaimStatements
from faststream_outbox.storage.postgres.statements.insert import InsertStatements
from faststream_outbox.storage.postgres.statements.operators import OperatorStatements
from faststream_outbox.storage.postgres.statements.queues import QueueStatements
from faststream_outbox.storage.postgres.statements.runs import RunStatements
from faststream_outbox.storage.postgres.statements.settle import SettleStatements


class Statements:
    """The statements for one outbox and, if there is one, its dead-letter table, by what they are for."""

    def __init__(self, outbox: Table, dlq: Table | None = None) -> None:
        self.insert = InsertStatements(outbox)
        self.claim = ClaimStatements(outbox)
        self.settle = SettleStatements(outbox, dlq)
        self.runs = RunStatements(outbox, dlq)
        self.operators = OperatorStatements(outbox, dlq)
        self.queues = QueueStatements(outbox, dlq)
