"""Rows of one key that are handled in their order: claimed together, and settled together."""

from collections.abc import Sequence
from dataclasses import dataclass

from faststream_outbox.storage.ordering.key_cursor import KeyPlan
from faststream_outbox.storage.outcomes import Ack, Outcome, Settlement, blocks_its_key
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow


@dataclass(frozen=True, slots=True)
class Run:
    """The first rows of a key, all of them due; the lease of the head, the first one, covers the others."""

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


@dataclass(frozen=True, slots=True)
class RunSettlement:
    """What became of the first rows of a run, in their order; the rest are as they were, and free again.

    Nothing comes after a row that is to be tried again, or is parked: it blocks its key until then.
    """

    lease: Lease
    outcomes: Sequence[tuple[int, Outcome]]

    @property
    def outcome(self) -> Outcome:
        """What became of the head, with which the rest is written."""
        return self.outcomes[0][1]

    @property
    def group(self) -> None:
        """No group: a run is written as a whole anyway."""
        return None

    def __post_init__(self) -> None:
        if not self.outcomes:
            raise ValueError("A run is settled with the outcome of its first row at least.")
        if self.outcomes[0][0] != self.lease.row_id:
            raise ValueError(f"The outcomes of a run begin with that of its head, row {self.lease.row_id}.")
        if any(blocks_its_key(outcome) for _, outcome in self.outcomes[:-1]):
            raise ValueError("A row that is to be tried again, or parked, blocks its key: nothing after it is settled.")


AnySettlement = Settlement | RunSettlement


def run_of_acks(head: Lease, leases: Sequence[Lease], outputs: Sequence[NewRow]) -> RunSettlement:
    """Say that all these rows of a run are handled, and what is published with that."""
    rows = sorted(lease.row_id for lease in leases)
    return RunSettlement(head, [(row_id, Ack(tuple(outputs) if row_id == head.row_id else ())) for row_id in rows])
