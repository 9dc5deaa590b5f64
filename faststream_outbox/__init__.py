"""The transactional outbox on Postgres, for FastStream."""

from faststream_outbox.__about__ import __version__
from faststream_outbox.retry import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryStrategyProto
from faststream_outbox.storage import TimerConflict, make_dlq_table, make_outbox_table, outbox_autovacuum_ddl

__all__ = [
    "ConstantRetry",
    "ExponentialRetry",
    "LinearRetry",
    "NoRetry",
    "RetryStrategyProto",
    "TimerConflict",
    "__version__",
    "make_dlq_table",
    "make_outbox_table",
    "outbox_autovacuum_ddl",
]
