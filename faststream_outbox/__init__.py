"""The transactional outbox on Postgres, for FastStream."""

from faststream_outbox.__about__ import __version__
from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.broker.router import OutboxRouter
from faststream_outbox.inbox import Inbox
from faststream_outbox.message import OutboxBatchMessage, OutboxMessage
from faststream_outbox.metrics import MetricsRecorder
from faststream_outbox.publisher.collector import OutboxCollector
from faststream_outbox.publisher.events import OutboxEvent, RecordsEvents
from faststream_outbox.publisher.usecase import OutboxPublisher
from faststream_outbox.relay.relay import Relay
from faststream_outbox.response import CollectedMessage, OutboxResponse
from faststream_outbox.retry import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryStrategyProto
from faststream_outbox.storage import (
    OperationsTables,
    QueueStats,
    TimerConflict,
    make_dlq_table,
    make_inbox_table,
    make_operations_tables,
    make_outbox_table,
    make_shards_table,
    outbox_autovacuum_ddl,
    publish_functions_ddl,
)
from faststream_outbox.storage.ordering import AdvisoryLocks, HashShards, HeadLease, KeyState
from faststream_outbox.subscriber.signatures import OutboxSession
from faststream_outbox.testing import TestOutboxBroker

__all__ = [
    "AdvisoryLocks",
    "CollectedMessage",
    "ConstantRetry",
    "ExponentialRetry",
    "HashShards",
    "HeadLease",
    "Inbox",
    "KeyState",
    "LinearRetry",
    "MetricsRecorder",
    "NoRetry",
    "OperationsTables",
    "OutboxBatchMessage",
    "OutboxBroker",
    "OutboxCollector",
    "OutboxEvent",
    "OutboxMessage",
    "OutboxPublisher",
    "OutboxResponse",
    "OutboxRouter",
    "OutboxSession",
    "QueueStats",
    "RecordsEvents",
    "Relay",
    "RetryStrategyProto",
    "TestOutboxBroker",
    "TimerConflict",
    "__version__",
    "make_dlq_table",
    "make_inbox_table",
    "make_operations_tables",
    "make_outbox_table",
    "make_shards_table",
    "outbox_autovacuum_ddl",
    "publish_functions_ddl",
]
