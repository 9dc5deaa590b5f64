"""What operators do with many rows of the store in memory."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

from sqlalchemy import Table

from faststream_outbox.storage.memory.admin import letter_of
from faststream_outbox.storage.memory.matching import dead_letter_matches, message_matches
from faststream_outbox.storage.memory.table import MemoryTable, unlease
from faststream_outbox.storage.operating.acts import (
    GONE,
    HOLDS_KEY,
    IN_FLIGHT,
    KEY_IN_FLIGHT,
    OTHER,
    WHY_NOT_NOW,
    Acted,
    AuditFilter,
    AuditRow,
    Keys,
    RowFilter,
    StoreActs,
    Walked,
    WalkPosition,
)
from faststream_outbox.storage.operating.admin import DeadLetterRow
from faststream_outbox.storage.operating.filters import DeadLetterFilter, MessageFilter
from faststream_outbox.storage.operating.reads import Kind
from faststream_outbox.storage.ordering.states import state_of
from faststream_outbox.storage.parking import BY_OPERATOR, Cause, cause_in, with_cause
from faststream_outbox.storage.rows import NewRow, OutboxRow


class _Send(Protocol):
    def __call__(self, queues: Sequence[str], /) -> None: ...


class MemoryActs(StoreActs):
    """Finds and changes rows in a dict; sessions are ignored, and every act is written to a list."""

    audit_needs_table = False

    def __init__(self, table: MemoryTable, send: _Send) -> None:
        self._table = table
        self._send = send
        self._audit: list[AuditRow] = []

    def prepare(self, session: object) -> None:
        """Do nothing: there are no plans."""

    def upper_id(self, session: object, kind: Kind) -> int:
        """Return the highest id; 0 if there is no row."""
        del session
        return max(self._table.rows if kind == "messages" else (dead.id for dead in self._table.dead), default=0)

    def walk(
        self, session: object, kind: Kind, where: RowFilter, *, upper_id: int, after: WalkPosition | None, limit: int
    ) -> Walked:
        """Return the next ids of rows that match, in the order of ids."""
        del session, kind
        first = -1 if after is None else int(after[0])
        if isinstance(where, DeadLetterFilter):
            matching = [dead.id for dead in self._table.dead if dead_letter_matches(dead, where)]
        else:
            now, heads = self._table.clock(), self._table.heads()
            matching = [row.id for row in self._table.rows.values() if message_matches(row, where, now, heads)]
        ids = list(islice((each for each in sorted(matching) if first < each <= upper_id), limit))
        return Walked(ids, (ids[-1],) if len(ids) == limit else None)

    def read_dead_letters(self, session: object, ids: Sequence[int]) -> list[DeadLetterRow]:
        """Return dead letters, in the order of the ids."""
        del session
        found = {dead.id: letter_of(dead) for dead in self._table.dead}
        return [found[each] for each in ids if each in found]

    def deliver_now(self, session: object, ids: Sequence[int], where: MessageFilter | None) -> Acted:
        """Make rows due that wait for a time."""
        del session
        acted, now, heads = Acted(), self._table.clock(), self._table.heads()
        for each in ids:
            row = self._table.rows.get(each)
            if row is None:
                acted.skipped[each] = GONE
            elif (why := WHY_NOT_NOW.get(state_of(row, now))) is not None or not message_matches(
                row, where, now, heads
            ):
                acted.skipped[each] = why or OTHER
            else:
                row.next_attempt_epoch = now
                acted.done += 1
                acted.queues.add(row.queue)
        return acted

    def discard(self, session: object, ids: Sequence[int], where: MessageFilter | None) -> Acted:
        """Delete rows that no process handles."""
        del session
        acted = Acted()
        for each in ids:
            row = self._table.rows.get(each)
            why = GONE if row is None else self._why_stays(row, where)
            if row is None or why is not None:
                acted.skipped[each] = why or GONE
                continue
            del self._table.rows[each]
            acted.done += 1
            acted.queues |= set() if row.entity_key is None else {row.queue}
        return acted

    def _why_stays(self, row: OutboxRow, where: MessageFilter | None) -> str | None:
        now = self._table.clock()
        if state_of(row, now) == "in_flight":
            return IN_FLIGHT
        heads = self._table.heads()
        head = heads.get((row.queue, row.entity_key))
        if head is not None and head.lease_expires_epoch > now:
            return KEY_IN_FLIGHT
        if cause_in(row.headers_json).holds:
            return HOLDS_KEY
        return None if message_matches(row, where, now, heads) else OTHER

    def move(self, session: object, ids: Sequence[int], where: MessageFilter | None, queue: str, left: Keys) -> Acted:
        """Raise: this needs Postgres."""
        raise NotImplementedError("Messages are moved in Postgres only: the store in memory is for tests.")

    def hold_key(self, session: object, queue: str, key: str, reason: str) -> tuple[bool, int | None]:
        """Park the head of a key or, if it has none that is free, add a row that holds the key."""
        del session
        now = self._table.clock()
        of_key = next(
            (rows for rows in self._table.rows_by_key() if (rows[0].queue, rows[0].entity_key) == (queue, key)), []
        )
        held = [row for row in of_key if cause_in(row.headers_json).holds]
        if of_key and of_key[0].next_attempt_epoch == math.inf:
            return True, None
        if of_key and state_of(of_key[0], now) != "in_flight":
            row, due = of_key[0], of_key[0].next_attempt_epoch
        elif held:
            return True, held[0].id
        else:
            row, due = self._table.rows[self._table.add(NewRow(queue, b"", key=key))], None
        failure = cause_in(row.headers_json).exception
        cause = Cause(BY_OPERATOR, reason, now, due, holds=due is None, failure=failure)
        row.headers_json = with_cause(row.headers_json, cause)
        unlease(row)
        row.next_attempt_epoch = math.inf
        return True, row.id

    def drop_holds(self, session: object, queue: str, key: str) -> list[int]:
        """Delete the rows that hold a key and are no messages."""
        del session
        rows = [row for row in self._table.rows.values() if (row.queue, row.entity_key) == (queue, key)]
        held = [row.id for row in rows if cause_in(row.headers_json).holds]
        for each in held:
            del self._table.rows[each]
        return held

    def purge(self, session: object, ids: Sequence[int], where: DeadLetterFilter | None) -> Acted:
        """Delete dead letters that match."""
        del session
        acted, found = Acted(), {dead.id: dead for dead in self._table.dead}
        for each in ids:
            dead = found.get(each)
            if dead is None or not dead_letter_matches(dead, where):
                acted.skipped[each] = GONE if dead is None else OTHER
            else:
                self._table.dead.remove(dead)
                acted.done += 1
        return acted

    def notify(self, session: object, queues: Sequence[str]) -> None:
        """Notify the subscribers of these queues."""
        del session
        self._send(queues)

    def add_audit(
        self, session: object, table: Table | None, *, by: str, action: str, reason: str, target: Any, count: int
    ) -> int | None:
        """Add an entry to the list and return its id; a table is not needed."""
        del session, table
        self._audit.append(AuditRow(len(self._audit) + 1, self._table.clock(), by, action, reason, target, count))
        return len(self._audit)

    def raise_audit(self, session: object, table: Table | None, audit_id: int, count: int) -> None:
        """Add to the count of an entry."""
        del session, table
        entry = self._audit[audit_id - 1]
        self._audit[audit_id - 1] = replace(entry, count=entry.count + count)

    def read_audit(
        self, session: object, table: Table | None, where: AuditFilter, *, before_id: int | None, limit: int
    ) -> tuple[list[AuditRow], int | None]:
        """Return the entries that match, the newest first, and the id before which to go on; None at the end."""
        del session, table
        newest_first = (entry for entry in reversed(self._audit) if before_id is None or entry.id < before_id)
        found = list(islice((entry for entry in newest_first if _audit_matches(entry, where)), limit))
        return found, found[-1].id if len(found) == limit else None


def _audit_matches(entry: AuditRow, where: AuditFilter) -> bool:
    asked = where.given()
    queues = (entry.target.get("queue"), (entry.target.get("where") or {}).get("queue"))
    return (
        asked.get("by", entry.by) == entry.by
        and asked.get("action", entry.action) == entry.action
        and ("queue" not in asked or asked["queue"] in queues)
        and asked.get("after", entry.at) <= entry.at
        and ("before" not in asked or entry.at < asked["before"])
    )
