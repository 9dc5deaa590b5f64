"""Replay dead letters of a store in memory."""

from collections.abc import Iterable
from uuid import uuid4

from faststream_outbox.storage.memory.table import DeadRow, MemoryTable, unlease
from faststream_outbox.storage.operating.replay import Replayed, SkipReason
from faststream_outbox.storage.parking import without_cause
from faststream_outbox.storage.rows import OutboxRow


def replay_letters(table: MemoryTable, letter_ids: Iterable[int]) -> tuple[Replayed, set[str]]:
    """Put dead letters back, and return their queues too."""
    wanted = dict.fromkeys(sorted(set(letter_ids)))
    letters = {dead.id: dead for dead in table.dead}
    heads = {(rows[0].queue, rows[0].entity_key): rows[0] for rows in table.rows_by_key()}
    result, queues = Replayed(), set[str]()
    for letter_id in wanted:
        letter = letters.get(letter_id)
        head = None if letter is None else heads.get((letter.row.queue, letter.row.entity_key))
        reason = "gone" if letter is None else _reason_to_skip(table, letter, head)
        if letter is None or reason is not None:
            result.skipped[letter_id] = reason or "gone"
            continue
        if head is not None and head.acquired_token is not None:
            # It stays a suspect, and the process that had it cannot settle it any more.
            head.acquired_token = uuid4()
            head.acquired_epoch = table.clock() if head.acquired_epoch is None else head.acquired_epoch
        table.dead.remove(letter)
        table.rows[letter.original_id] = _fresh(letter.row, table.clock())
        queues.add(letter.row.queue)
        result.back.append(letter_id)
    return result, queues


def _reason_to_skip(table: MemoryTable, letter: DeadRow, head: OutboxRow | None) -> SkipReason | None:
    row = letter.row
    if letter.original_id in table.rows:
        return "id_taken"
    if row.timer_id is not None and table.timer(row.queue, row.timer_id) is not None:
        return "timer_waits"
    if head is not None and head.lease_expires_epoch > table.clock():
        return "in_flight"
    return None


def _fresh(row: OutboxRow, now: float) -> OutboxRow:
    unlease(row)
    row.headers_json = without_cause(row.headers_json)
    row.next_attempt_epoch = now
    row.attempts_count = row.deliveries_count = 0
    row.first_attempt_epoch = row.last_attempt_epoch = None
    return row
