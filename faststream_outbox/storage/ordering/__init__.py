"""How rows with a key are claimed: those of one key in their order, and by one consumer at a time."""

from faststream_outbox.storage.ordering.cursor import KeyCursor, KeyPlan
from faststream_outbox.storage.ordering.runs import AnySettlement, Run, RunClaim, RunSettlement
from faststream_outbox.storage.ordering.shards import NO_SHARDS, OwnShards, Shard, ShardHolder
from faststream_outbox.storage.ordering.strategies import (
    AdvisoryLocks,
    HashShards,
    HeadLease,
    Ordering,
    check_ordering,
)

__all__ = [
    "NO_SHARDS",
    "AdvisoryLocks",
    "AnySettlement",
    "HashShards",
    "HeadLease",
    "KeyCursor",
    "KeyPlan",
    "Ordering",
    "OwnShards",
    "Run",
    "RunClaim",
    "RunSettlement",
    "Shard",
    "ShardHolder",
    "check_ordering",
]
