"""How rows and outcomes are told of in a history."""

from faststream_outbox.storage import Ack, Dead, OutboxRow, Outcome, Park, Retry
from tests.soak.history import ClaimedRow, Verb


def uid(row: OutboxRow) -> str:
    """The name under which the row was published."""
    return row.payload.decode()


def claimed_row(row: OutboxRow) -> ClaimedRow:
    """Tell of a row that a claim brought."""
    times = row.acquired_epoch or 0.0, row.lease_expires_epoch
    return ClaimedRow(uid(row), row.id, row.lease.token.hex, row.deliveries_count, *times)


def verb_of(outcome: Outcome) -> tuple[Verb, float]:
    """Tell of an outcome, and of the delay that it asks for."""
    match outcome:
        case Ack():
            return "ack", 0.0
        case Retry(delay_seconds):
            return "retry", delay_seconds
        case Dead() | Park():
            return "dead", 0.0
