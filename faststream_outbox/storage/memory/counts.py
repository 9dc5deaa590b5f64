"""Count the rows of every queue of the store in memory; all of them, without a cap."""

from collections import Counter
from operator import attrgetter

from faststream_outbox.storage.memory.table import MemoryTable
from faststream_outbox.storage.ordering.states import BLOCKED, state_of
from faststream_outbox.storage.queue_stats import QueueCounts, QueueStats
from faststream_outbox.storage.rows import OutboxRow


def queue_counts(table: MemoryTable) -> list[QueueCounts]:
    """Count the rows of every queue, and its dead letters."""
    queues = {row.queue for row in table.rows.values()} | {dead.row.queue for dead in table.dead}
    return [_count(table, queue) for queue in sorted(queues)]


def _count(table: MemoryTable, queue: str) -> QueueCounts:
    now = table.clock()
    rows = [row for row in table.rows.values() if row.queue == queue]
    heads: dict[str, OutboxRow] = {}
    for row in sorted(rows, key=attrgetter("id")):
        if row.entity_key is not None:
            heads.setdefault(row.entity_key, row)
    head_states = [state_of(head, now) for head in heads.values()]
    counts_as = [_counts_as(row, None if row.entity_key is None else heads[row.entity_key], now) for row in rows]
    counts = Counter(counts_as)
    due = [(row.next_attempt_epoch, counted) for row, counted in zip(rows, counts_as, strict=True)]
    ready = [at for at, counted in due if counted == "ready"]
    free = [at for at, counted in due if counted in ("ready", "expired")]
    late = [at for at, counted in due if counted in ("ready", "in_flight", "expired")]
    stats = QueueStats(
        queue=queue,
        ready=counts["ready"],
        scheduled=counts["scheduled"],
        in_flight=counts["in_flight"],
        expired=counts["expired"],
        blocked=counts["blocked"],
        blocked_keys=sum(state in BLOCKED for state in head_states),
        parked_keys=head_states.count("parked"),
        dead=sum(dead.row.queue == queue for dead in table.dead),
        oldest_ready_age=now - min(ready) if ready else None,
        oldest_age=now - min(row.created_epoch for row in rows) if rows else None,
        oldest_due_age=now - min(late) if late else None,
    )
    retrying = sum(state_of(row, now) == "retrying" for row in rows)
    return QueueCounts(stats, retrying, now - min(free) if free else None)


def _counts_as(row: OutboxRow, head: OutboxRow | None, now: float) -> str:
    """Return as what a row is counted in its queue; a row with a key depends on its head."""
    state = state_of(row, now)
    if state in ("in_flight", "expired"):
        return state
    if head is row and state == "parked":
        return "blocked"
    if head is not None and head is not row and state_of(head, now) != "ready":
        return "blocked"
    return "ready" if state == "ready" else "scheduled"
