"""Search the messages of the outbox: one range of one index after the other, a part at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Table

from faststream_outbox.storage.operating.filters import COUNT_CAP, Count, MessageFilter
from faststream_outbox.storage.operating.reads import MOST_EXAMINED, Head, Position, Search, StoreReads, route_of
from faststream_outbox.storage.postgres.reads.execute import BEGIN_READ, Execute, only_needed, part_size
from faststream_outbox.storage.postgres.statements.conditions import parameters
from faststream_outbox.storage.postgres.statements.search import MOST_NAMES, PARTS, Leg, SearchStatements
from faststream_outbox.storage.rows import OutboxRow

_FIRST_ID: Final = -(2**63)
# What a leg costs that finds nothing, in rows examined: a search over thousands of empty queues stops, too.
_LEG_COSTS: Final = 50


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in a search: in which range, and after which row of it."""

    leg: Leg
    queue: str = ""
    value: str = ""
    row_id: int = _FIRST_ID

    @property
    def position(self) -> Position:
        return self.leg, self.queue, self.value, self.row_id


class PostgresMessageReads(StoreReads):
    """Reads messages by statements on the session that is given."""

    def __init__(self, execute: Execute, outbox: Table, dlq: Table | None) -> None:
        self._execute = execute
        self._outbox, self._dlq = outbox, dlq
        self._search = SearchStatements(outbox)

    def begin_read(self, session: Any) -> None:
        """Make a transaction of our own read-only, and its plans independent of the server's settings."""
        self._execute(session, BEGIN_READ)

    def read_messages(self, session: Any, ids: Sequence[int]) -> Search[OutboxRow]:
        """Return the rows with these ids in this order, and the heads before them; those that are gone are left out."""
        now, rows, heads = 0.0, dict[int, OutboxRow](), dict[int, Head]()
        records = self._execute(session, self._search.read, ids=list(ids))
        for now, head_id, head_state, *fields in records:  # noqa: B007 - the same in all
            row = OutboxRow(*fields)
            rows[row.id] = row
            if head_id is not None:
                heads[row.id] = Head(head_id, head_state)
        return Search([rows[row_id] for row_id in ids if row_id in rows], now=now, heads=heads)

    def search_messages(
        self, session: Any, where: MessageFilter, after: Position | None, limit: int, *, timers: bool = False
    ) -> Search[OutboxRow]:
        """Return rows that match, in the order of `route_of`; with `timers` only rows that are timers."""
        places, place, complete = self._search_places(session, where, after, limit, timers=timers)
        ids = [each.row_id for each in places]
        if (count := self.count_fitting(session, "messages", ids)) < len(ids):
            place, complete = places[count - 1], True
        found = self.read_messages(session, ids[:count])
        return Search(found.items, None if place is None else place.position, complete, found.now, found.heads)

    def _search_places(
        self, session: Any, where: MessageFilter, after: Position | None, limit: int, *, timers: bool
    ) -> tuple[list[_Place], _Place | None, bool]:
        values, places, examined = parameters(where), list[_Place](), 0
        last: _Place | None = None
        for start in self._legs(session, where, after, timers=timers):
            place: _Place | None = start
            if last is not None and len(places) == limit:
                return places, last, True
            while place is not None:
                if examined >= MOST_EXAMINED:
                    return places, place, False
                filtered = bool(set(values) - {"queue", "key"})
                size = part_size(PARTS, limit - len(places), filtered=filtered, examined=examined)
                seen, place, found = self._examine(session, place, where, values, size)
                examined += seen + _LEG_COSTS
                for each in found:
                    if len(places) == limit:
                        return places, last, True
                    places.append(each)
                    last = each
                if place is not None and len(places) == limit:
                    return places, last, True
        return places, None, True

    def _examine(
        self, session: Any, place: _Place, where: MessageFilter, values: dict[str, Any], size: int
    ) -> tuple[int, _Place | None, list[_Place]]:
        """Return how many rows were examined, where to go on (None at the end of the leg), and what was found."""
        statement = self._search.part(place.leg, where, size)
        after = {"after_queue": place.queue, "after_value": place.value, "after_id": place.row_id}
        given = only_needed(statement, {**values, **after, "leg_queue": place.queue})
        seen, last, found = 0, place, list[_Place]()
        for row_id, queue, value, wanted, number in self._execute(session, statement, **given):
            seen, last = number, _Place(place.leg, queue, value, row_id)
            if wanted:
                found.append(last)
        return seen, last if seen == size else None, found

    def _legs(self, session: Any, where: MessageFilter, after: Position | None, *, timers: bool) -> Iterator[_Place]:
        route = route_of(where, timers=timers)
        start = None if after is None else _Place(*after)  # type: ignore[arg-type]  # checked by `check_position`
        if route in ("id", "timer"):
            yield start or _Place("timer" if route == "timer" else "id")
            return
        if start is not None:
            yield start
            if start.leg == "due":
                yield _Place("keyed", start.queue)
        for queue in self._queues(session, where.queue, None if start is None else start.queue):
            if route == "key":
                yield _Place("key", queue)
            else:
                if where.state != "blocked":
                    yield _Place("due", queue, "-infinity")
                yield _Place("keyed", queue)

    def _queues(self, session: Any, queue: str | None, after: str | None) -> Iterator[str]:
        """Yield the queues after this one, or the queue that is asked for."""
        if queue is not None:
            if after is None:
                yield queue
            return
        while True:
            names = [name for (name,) in self._execute(session, self._search.queues, first=after or "")]
            yield from (name for name in names if name != after)
            if len(names) < MOST_NAMES:
                return
            after = names[-1]

    def find_messages(self, session: Any, correlation_id: str, limit: int) -> Search[OutboxRow]:
        """Search the oldest and the newest rows for a correlation id; `complete` says that these are all rows."""
        asked = {"correlation_id": correlation_id, "limit": limit}
        [[complete, ids]] = self._execute(session, self._search.find, **asked)
        count = self.count_fitting(session, "messages", ids)
        found = self.read_messages(session, ids[:count])
        return Search(found.items, None, bool(complete) and count == len(ids) < limit, found.now, found.heads)

    def new_ids(self, session: Any, queue: str | None, after_id: int | None) -> tuple[list[int], int]:
        """Return the ids of rows after an id, and the highest id that was examined; without an id, of the newest."""
        if after_id is None:
            records = self._execute(session, self._search.newest)
        else:
            records = self._execute(session, self._search.newer, after_id=after_id)
        highest = max((row_id for row_id, _ in records), default=0 if after_id is None else after_id)
        return sorted(row_id for row_id, its_queue in records if queue in (None, its_queue)), highest

    def count_key(self, session: Any, queue: str, key: str) -> Count:
        """Count the rows of a key, up to `COUNT_CAP`."""
        [[number]] = self._execute(session, self._search.count_key, leg_queue=queue, key=key)
        return Count(min(number, COUNT_CAP), capped=number > COUNT_CAP)
