"""Search and group dead letters: the newest first, a part of an index at a time."""

from collections.abc import Sequence
from typing import Any, Final, cast

from sqlalchemy import Table

from faststream_outbox.storage.operating.filters import Count, DeadLetterFilter
from faststream_outbox.storage.operating.reads import (
    MOST_EXAMINED,
    DeadLetterRow,
    Kind,
    LetterGroup,
    Position,
    Search,
    fitting,
)
from faststream_outbox.storage.postgres.reads.execute import Execute, only_needed, part_size
from faststream_outbox.storage.postgres.reads.messages import PostgresMessageReads
from faststream_outbox.storage.postgres.statements.conditions import parameters
from faststream_outbox.storage.postgres.statements.dead_letters import DeadLetterStatements, LetterLeg
from faststream_outbox.storage.postgres.statements.search import PARTS

_LAST_ID: Final = 2**63 - 1
# A place in a search, as a `Position`: after which row.
_Place = tuple[str, str, int]


class PostgresLetterReads(PostgresMessageReads):
    """Reads dead letters; without a dead-letter table there are none."""

    def __init__(self, execute: Execute, outbox: Table, dlq: Table | None) -> None:
        super().__init__(execute, outbox, dlq)
        self._letters = None if dlq is None else DeadLetterStatements(dlq)

    def read_dead_letter(self, session: Any, letter_id: int) -> DeadLetterRow | None:
        """Return one row of the dead-letter table; None if there is none."""
        if self._letters is None:
            return None
        records = self._execute(session, self._letters.one, id=letter_id)
        return DeadLetterRow(*records[0]) if records else None

    def count_fitting(self, session: Any, kind: Kind, ids: Sequence[int]) -> int:
        """Return how many of these rows, from the first on, to read together."""
        sizes = self._search.sizes if kind == "messages" or self._letters is None else self._letters.sizes
        return fitting(ids, dict(map(tuple, self._execute(session, sizes, ids=list(ids)))))

    def search_dead_letters(
        self, session: Any, where: DeadLetterFilter, after: Position | None, limit: int
    ) -> Search[DeadLetterRow]:
        """Return dead letters that match, the newest first."""
        if self._letters is None:
            return Search([])
        places, position, complete = self._search_letters(session, self._letters, where, after, limit)
        ids = [row_id for _, _, row_id in places]
        if (count := self.count_fitting(session, "dead_letters", ids)) < len(ids):
            ids, position, complete = ids[:count], places[count - 1], True
        records = self._execute(session, self._letters.read, ids=ids)
        letters = {record[0]: DeadLetterRow(*record) for record in records}
        return Search([letters[letter_id] for letter_id in ids if letter_id in letters], position, complete)

    def _search_letters(
        self,
        session: Any,
        statements: DeadLetterStatements,
        where: DeadLetterFilter,
        after: Position | None,
        limit: int,
    ) -> tuple[list[_Place], Position | None, bool]:
        leg = self._leg(session, statements, where)
        position: _Place = ("", "infinity", _LAST_ID) if after is None else cast("_Place", after)
        values = parameters(where)
        places, examined, last = list[_Place](), 0, position
        while examined < MOST_EXAMINED:
            filtered = bool(set(values) - {"queue"})
            size = part_size(PARTS, limit - len(places), filtered=filtered, examined=examined)
            statement = statements.part(leg, where, size)
            _, value, row_id = position
            given = only_needed(statement, {**values, "after_value": value, "after_id": row_id})
            seen = 0
            for row_id, value, wanted, seen in self._execute(session, statement, **given):  # noqa: B007 - the last one
                position = ("", value, row_id)
                if wanted and len(places) == limit:
                    return places, last, True
                if wanted:
                    places.append(position)
                    last = position
            if seen < size:
                return places, None, True
            if len(places) == limit:
                return places, last, True
            examined += seen
        return places, position, False

    def _leg(self, session: Any, statements: DeadLetterStatements, where: DeadLetterFilter) -> LetterLeg:
        if where.correlation_id is not None:
            [[indexed]] = self._execute(session, statements.has_correlation_index)
            if indexed:
                return "correlation"
        return "id" if where.queue is None else "failed"

    def group_dead_letters(self, session: Any) -> list[LetterGroup]:
        """Group the newest `COUNT_CAP` dead letters of each queue."""
        if self._letters is None:
            return []
        return [
            LetterGroup(queue, reason, exception_type, Count(number, capped=more), *rest)
            for queue, reason, exception_type, number, more, *rest in self._execute(session, self._letters.groups)
        ]
