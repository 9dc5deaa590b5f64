"""How rows with a key are claimed: those of one key in their order, and by one consumer at a time."""

from faststream_outbox.storage.ordering.actions import KeyAction, ParkKey, ReleaseKey, RetryKey, SkipKey
from faststream_outbox.storage.ordering.cursor import KeyCursor, KeyPlan
from faststream_outbox.storage.ordering.runs import AnySettlement, Run, RunClaim, RunSettlement
from faststream_outbox.storage.ordering.states import KeyState, KeyStateName

__all__ = [
    "AnySettlement",
    "KeyAction",
    "KeyCursor",
    "KeyPlan",
    "KeyState",
    "KeyStateName",
    "ParkKey",
    "ReleaseKey",
    "RetryKey",
    "Run",
    "RunClaim",
    "RunSettlement",
    "SkipKey",
]
