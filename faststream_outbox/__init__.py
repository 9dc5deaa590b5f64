"""The transactional outbox on Postgres, for FastStream."""

from faststream_outbox.__about__ import __version__
from faststream_outbox.storage import TimerConflict, make_dlq_table, make_outbox_table, outbox_autovacuum_ddl

__all__ = ["TimerConflict", "__version__", "make_dlq_table", "make_outbox_table", "outbox_autovacuum_ddl"]
