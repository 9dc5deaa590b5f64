"""What operators read from the store in memory: the same results as on Postgres, by looking at all rows."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from faststream_outbox.storage.memory.counts import queue_counts
from faststream_outbox.storage.memory.matching import dead_letter_matches, message_matches
from faststream_outbox.storage.memory.table import DeadRow, MemoryTable
from faststream_outbox.storage.operating.exception_types import exception_type
from faststream_outbox.storage.operating.filters import COUNT_CAP, Count, DeadLetterFilter, MessageFilter
from faststream_outbox.storage.operating.reads import (
    DeadLetterRow,
    Head,
    Kind,
    LetterGroup,
    Position,
    Route,
    Search,
    StoreReads,
    route_of,
)
from faststream_outbox.storage.operating.registry import NodeOverview
from faststream_outbox.storage.ordering.states import KeyState, state_of
from faststream_outbox.storage.queue_stats import QueueCounts
from faststream_outbox.storage.rows import OutboxRow

_NEWEST: Final = 1_000


class MemoryReads(StoreReads):
    """Reads rows in a dict; sessions are ignored."""

    def __init__(self, table: MemoryTable) -> None:
        self._table = table

    def begin_read(self, session: object) -> None:
        """Do nothing: there are no transactions."""

    def count_fitting(self, session: object, kind: Kind, ids: Sequence[int]) -> int:
        """Return all: the rows are in memory."""
        del session, kind
        return len(ids)

    def read_messages(self, session: object, ids: Sequence[int]) -> Search[OutboxRow]:
        """Return the rows with these ids, and the heads before them."""
        del session
        found = (self._table.rows.get(row_id) for row_id in ids)
        return self._with_heads(Search([replace(row) for row in found if row is not None], now=self._table.clock()))

    def _with_heads(self, found: Search[OutboxRow]) -> Search[OutboxRow]:
        heads = self._table.heads()
        before = {row.id: heads[row.queue, row.entity_key] for row in found.items if row.entity_key is not None}
        shown = {each: Head(head.id, state_of(head, found.now)) for each, head in before.items() if head.id != each}
        return replace(found, heads=shown)

    def search_messages(
        self, session: object, where: MessageFilter, after: Position | None, limit: int, *, timers: bool = False
    ) -> Search[OutboxRow]:
        """Return rows that match, in the order of `route_of`."""
        del session
        now, route, heads = self._table.clock(), route_of(where, timers=timers), self._table.heads()
        rows = [
            (_place(row, route), row)
            for row in self._table.rows.values()
            if message_matches(row, where, now, heads) and not (timers and row.timer_id is None)
        ]
        found = sorted((each for each in rows if after is None or each[0] > _parsed(after)), key=lambda each: each[0])
        page = found[:limit]
        position = _position(page[-1][0]) if len(found) > limit else None
        return self._with_heads(Search([replace(row) for _, row in page], position, now=now))

    def find_messages(self, session: object, correlation_id: str, limit: int) -> Search[OutboxRow]:
        """Search all rows for a correlation id."""
        found = self.search_messages(session, MessageFilter(correlation_id=correlation_id), None, limit)
        return Search(found.items, None, found.position is None, found.now, found.heads)

    def new_ids(self, session: object, queue: str | None, after_id: int | None) -> tuple[list[int], int]:
        """Return the ids of rows after an id, and the highest id that was examined; without an id, of the newest."""
        del session
        ids = sorted(self._table.rows)
        ids = ids[-_NEWEST:] if after_id is None else [row_id for row_id in ids if row_id > after_id]
        highest = max(ids, default=after_id or 0)
        return [row_id for row_id in ids if queue in (None, self._table.rows[row_id].queue)], highest

    def read_dead_letter(self, session: object, letter_id: int) -> DeadLetterRow | None:
        """Return one dead letter; None if there is none."""
        del session
        return next((letter_of(dead) for dead in self._table.dead if dead.id == letter_id), None)

    def search_dead_letters(
        self, session: object, where: DeadLetterFilter, after: Position | None, limit: int
    ) -> Search[DeadLetterRow]:
        """Return dead letters that match, the newest first."""
        del session
        newest_first = sorted(self._table.dead, key=lambda dead: -dead.id)
        before = None if after is None else int(after[-1])
        found = [
            dead for dead in newest_first if dead_letter_matches(dead, where) and (before is None or dead.id < before)
        ]
        page = found[:limit]
        position = ("", "", page[-1].id) if len(found) > limit else None
        return Search([letter_of(dead) for dead in page], position)

    def group_dead_letters(self, session: object) -> list[LetterGroup]:
        """Group dead letters by queue, reason and type of exception."""
        del session
        groups = defaultdict[tuple[str, str, str | None], list[DeadRow]](list)
        for dead in self._table.dead:
            groups[dead.row.queue, dead.failure_reason, exception_type(dead.last_exception)].append(dead)
        described = [
            LetterGroup(
                *group,
                Count(len(letters)),
                min(dead.failed_at for dead in letters).timestamp(),
                max(dead.failed_at for dead in letters).timestamp(),
                max(dead.id for dead in letters),
            )
            for group, letters in groups.items()
        ]
        return sorted(described, key=lambda g: (-g.count.number, g.queue, g.reason, g.exception_type or "\U0010ffff"))

    def count_queues(self, session: object, queue: str | None = None) -> list[QueueCounts]:
        """Count the rows of every queue, or of one."""
        del session
        return [each for each in queue_counts(self._table) if queue in (None, each.stats.queue)]

    def search_keys(
        self, session: object, queue: str | None, states: Sequence[str], after: Position | None, limit: int
    ) -> Search[KeyState]:
        """Describe keys whose heads are in these states, by queue and key."""
        del session
        now = self._table.clock()
        found = [
            KeyState.of(rows[0], waiting=len(rows) - 1, now=now)
            for rows in self._table.rows_by_key()
            if queue in (None, rows[0].queue) and state_of(rows[0], now) in states
        ]
        waiting = [key for key in found if after is None or (key.queue, key.key) > after]
        position = (waiting[limit - 1].queue, waiting[limit - 1].key) if len(waiting) > limit else None
        return Search(waiting[:limit], position, now=now)

    def count_key(self, session: object, queue: str, key: str) -> Count:
        """Count the rows of a key, up to `COUNT_CAP`."""
        del session
        number = sum((row.queue, row.entity_key) == (queue, key) for row in self._table.rows.values())
        return Count(min(number, COUNT_CAP), capped=number > COUNT_CAP)

    def read_nodes(self, session: object) -> list[NodeOverview]:
        """Return none: no other process can see these rows."""
        del session
        return []

    def find_node(self, session: object, name: str) -> NodeOverview:
        """Return a node of which nothing is known."""
        del session
        return NodeOverview(name, None)

    def count_serving(self, session: object) -> None:
        """Return None: there is no table of nodes."""
        del session


_Place = tuple[str, bool, float, str, int]


def _place(row: OutboxRow, route: Route) -> _Place:
    """Return the place of a row in the order of a route."""
    match route:
        case "timer":
            return row.queue, False, 0.0, row.timer_id or "", 0
        case "key":
            return row.queue, False, 0.0, "", row.id
        case "queue" if row.entity_key is None:
            return row.queue, False, row.next_attempt_epoch, "", row.id
        case "queue":
            return row.queue, True, 0.0, row.entity_key or "", row.id
        case _:
            return "", False, 0.0, "", row.id


def _position(place: _Place) -> Position:
    queue, keyed, at, value, row_id = place
    return queue, int(keyed), at.hex(), value, row_id


def _parsed(position: Position) -> Any:
    queue, keyed, at, value, row_id = position
    return queue, bool(keyed), float.fromhex(str(at)), value, row_id


def letter_of(dead: DeadRow) -> DeadLetterRow:
    """Return a dead letter as the table of Postgres would hold it."""
    row = dead.row
    return DeadLetterRow(
        id=dead.id,
        original_id=dead.original_id,
        queue=row.queue,
        entity_key=row.entity_key,
        payload=row.payload,
        headers_json=row.headers_json,
        timer_id=row.timer_id,
        attempts_count=row.attempts_count,
        deliveries_count=row.deliveries_count,
        created_epoch=row.created_epoch,
        first_attempt_epoch=row.first_attempt_epoch,
        last_attempt_epoch=row.last_attempt_epoch,
        failed_epoch=dead.failed_at.timestamp(),
        failure_reason=dead.failure_reason,
        last_exception=dead.last_exception,
    )
