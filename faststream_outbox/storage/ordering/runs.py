"""Rows of one key that are handled in their order: claimed together, and settled together."""

from collections.abc import Sequence
from dataclasses import dataclass

from faststream_outbox.storage.ordering.key_cursor import KeyPlan
from faststream_outbox.storage.outcomes import HANDLED, Ack, Settlement
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow


@dataclass(frozen=True, slots=True)
class Run:
    """The first rows of a key, all of them due. The lease of the first, the head, covers the others."""

    rows: Sequence[OutboxRow]

    @property
    def lease(self) -> Lease:
        """The lease that covers all of it."""
        return self.rows[0].lease

    @property
    def key(self) -> str | None:
        """The key that the rows have in common."""
        return self.rows[0].entity_key


@dataclass(frozen=True, slots=True)
class RunClaim:
    """What one claim of runs brought, by the plan that it followed.

    `next_due` tells in how many seconds, as far as this claim has looked, the next run is due. `suspects` tells that it
    met keys whose holder let its lease run out.
    """

    plan: KeyPlan
    runs: list[Run]
    expires_at: float
    more: bool
    next_due: float | None
    suspects: bool


def settlement_of_acks(head: Lease, leases: Sequence[Lease], outputs: Sequence[NewRow]) -> Settlement:
    """Return the settlement of a run whose rows were all handled; `outputs` are inserted with it."""
    followers = sorted(lease.row_id for lease in leases if lease != head)
    return Settlement(head, Ack(tuple(outputs)), followers=[(row_id, HANDLED) for row_id in followers])
