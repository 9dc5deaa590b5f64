"""The stores and their contract: the only room that builds and runs SQL."""

from faststream_outbox.storage.commits import AnySession
from faststream_outbox.storage.contract import Claim, Store, StoreLane
from faststream_outbox.storage.cursor import ClaimCursor
from faststream_outbox.storage.handler_transaction import SharedTransaction
from faststream_outbox.storage.listening import Listening
from faststream_outbox.storage.memory.store import MemoryStore
from faststream_outbox.storage.outcomes import (
    HANDLED,
    Ack,
    Dead,
    FailureReason,
    Outcome,
    Park,
    Retry,
    Settled,
    SettleInterruptedError,
    Settlement,
)
from faststream_outbox.storage.postgres.functions import publish_functions_ddl
from faststream_outbox.storage.postgres.store import PostgresStore
from faststream_outbox.storage.publishing import SessionOrConnection, TimerConflict
from faststream_outbox.storage.queue_stats import QueueStats
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow
from faststream_outbox.storage.schema.operations_tables import OperationsTables, make_operations_tables
from faststream_outbox.storage.schema.tables import (
    make_dlq_table,
    make_inbox_table,
    make_outbox_table,
    make_shards_table,
    outbox_autovacuum_ddl,
)

__all__ = [
    "HANDLED",
    "Ack",
    "AnySession",
    "Claim",
    "ClaimCursor",
    "Dead",
    "FailureReason",
    "Lease",
    "Listening",
    "MemoryStore",
    "NewRow",
    "OperationsTables",
    "OutboxRow",
    "Outcome",
    "Park",
    "PostgresStore",
    "QueueStats",
    "Retry",
    "SessionOrConnection",
    "SettleInterruptedError",
    "Settled",
    "Settlement",
    "SharedTransaction",
    "Store",
    "StoreLane",
    "TimerConflict",
    "make_dlq_table",
    "make_inbox_table",
    "make_operations_tables",
    "make_outbox_table",
    "make_shards_table",
    "outbox_autovacuum_ddl",
    "publish_functions_ddl",
]
