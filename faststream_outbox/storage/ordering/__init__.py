"""How rows with a key are claimed: those of one key in their order, and by one consumer at a time."""

from faststream_outbox.storage.ordering.actions import KeyAction, ParkKey, ReleaseKey, RetryKey, SkipKey
from faststream_outbox.storage.ordering.key_cursor import KeyCursor, KeyPlan, KeyPosition
from faststream_outbox.storage.ordering.runs import Run, RunClaim
from faststream_outbox.storage.ordering.shards import NO_SHARDS, OwnShards, Shard, ShardHolder
from faststream_outbox.storage.ordering.states import KeyState, KeyStateName
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
    "HashShards",
    "HeadLease",
    "KeyAction",
    "KeyCursor",
    "KeyPlan",
    "KeyPosition",
    "KeyState",
    "KeyStateName",
    "Ordering",
    "OwnShards",
    "ParkKey",
    "ReleaseKey",
    "RetryKey",
    "Run",
    "RunClaim",
    "Shard",
    "ShardHolder",
    "SkipKey",
    "check_ordering",
]
