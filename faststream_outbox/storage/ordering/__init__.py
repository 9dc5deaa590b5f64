"""How rows with a key are claimed: those of one key in their order, and by one consumer at a time."""

from faststream_outbox.storage.ordering.cursor import KeyCursor, KeyPlan
from faststream_outbox.storage.ordering.runs import AnySettlement, Run, RunClaim, RunSettlement

__all__ = ["AnySettlement", "KeyCursor", "KeyPlan", "Run", "RunClaim", "RunSettlement"]
