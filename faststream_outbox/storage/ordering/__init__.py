"""Rows with a key: those of one key are handled in order, by one consumer at a time."""

from faststream_outbox.storage.ordering.key_cursor import KeyCursor, KeyPosition, Run, RunClaim
from faststream_outbox.storage.ordering.states import (
    KeyAction,
    KeyState,
    KeyStateName,
    ParkKey,
    ReleaseKey,
    RetryKey,
    SkipKey,
)
from faststream_outbox.storage.ordering.strategies import (
    NO_SHARDS,
    AdvisoryLocks,
    HashShards,
    HeadLease,
    Ordering,
    OwnShards,
    Shard,
    ShardHolder,
    check_ordering,
)

__all__ = [
    "NO_SHARDS",
    "AdvisoryLocks",
    "HashShards",
    "HeadLease",
    "KeyAction",
    "KeyCursor",
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
