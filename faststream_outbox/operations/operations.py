"""`OutboxOperations`: everything that an operator can read and do, for Python, the command line and a console."""

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.operations.acting.exports import ExportOperations
from faststream_outbox.operations.acting.key_acts import KeyActOperations
from faststream_outbox.operations.acting.message_acts import MessageActOperations
from faststream_outbox.operations.acting.pauses import PauseOperations
from faststream_outbox.operations.acting.replays import ReplayOperations
from faststream_outbox.operations.acting.timer_acts import TimerActOperations
from faststream_outbox.operations.dead_letters import DeadLetterOperations
from faststream_outbox.operations.doctor.operations import DoctorOperations
from faststream_outbox.operations.keys import KeyOperations
from faststream_outbox.operations.messages import MessageOperations
from faststream_outbox.operations.nodes import NodeOperations
from faststream_outbox.operations.queues import QueueOperations
from faststream_outbox.storage import PostgresStore, Store
from faststream_outbox.storage.schema.operations_tables import check_operations_tables
from faststream_outbox.storage.schema.tables import check_tables


class OutboxOperations(
    QueueOperations,
    PauseOperations,
    MessageOperations,
    MessageActOperations,
    KeyOperations,
    KeyActOperations,
    DeadLetterOperations,
    ReplayOperations,
    ExportOperations,
    TimerActOperations,
    NodeOperations,
    DoctorOperations,
):
    """The operations on one outbox; `broker.operations` has those of a broker.

    Example:
        operations = OutboxOperations(engine, outbox_table=outbox_table, dlq_table=dlq_table)
        print(await operations.message(7))

    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        outbox_table: Table,
        dlq_table: Table | None = None,
        control_table: Table | None = None,
        audit_table: Table | None = None,
        nodes_table: Table | None = None,
    ) -> None:
        """Make the operations of an outbox; nothing is connected yet.

        Args:
            engine: The engine; yours to dispose of.
            outbox_table: The table of messages: `make_outbox_table(metadata)`.
            dlq_table: The table of dead letters: `make_dlq_table(metadata)`.
            control_table: The table of pauses, of `make_operations_tables(metadata)`.
            audit_table: The table of what operators did, of `make_operations_tables(metadata)`. Without one, acts are
                logged.
            nodes_table: The table of processes, of `make_operations_tables(metadata)`.

        """
        check_tables(outbox_table, dlq_table)
        check_operations_tables(control_table, audit_table, nodes_table)
        store = PostgresStore(
            engine,
            outbox_table,
            dlq_table=dlq_table,
            control_table=control_table,
            audit_table=audit_table,
            nodes_table=nodes_table,
        )
        super().__init__(store, control_table=control_table, audit_table=audit_table, nodes_table=nodes_table)

    @classmethod
    def on_store(
        cls,
        store: Store,
        *,
        control_table: Table | None = None,
        audit_table: Table | None = None,
        nodes_table: Table | None = None,
    ) -> "OutboxOperations":
        """Make the operations of a store that exists; the store of a test is in memory."""
        operations = cls.__new__(cls)
        super(OutboxOperations, operations).__init__(
            store, control_table=control_table, audit_table=audit_table, nodes_table=nodes_table
        )
        return operations

    def as_read_only(self) -> "OutboxOperations":
        """Return the same operations on connections whose transactions are READ ONLY: the database refuses each act.

        Example:
            viewer = broker.operations.as_read_only()
            print(await viewer.queues())

        """
        store = self._store
        if not isinstance(store, PostgresStore) or store.engine is None:
            raise RuntimeError("Read-only operations need a database: make them, or the broker, with an engine.")
        return OutboxOperations(
            store.engine.execution_options(postgresql_readonly=True),
            outbox_table=store.outbox_table,
            dlq_table=store.dlq_table,
            control_table=self.control_table,
            audit_table=self.audit_table,
            nodes_table=self.nodes_table,
        )
