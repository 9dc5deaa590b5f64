"""Find the rows of a selection on Postgres, slice by slice, and read them."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, cast

from faststream_outbox.storage.operating.acts import RowFilter, Walked, WalkPosition
from faststream_outbox.storage.operating.admin import DeadLetterRow
from faststream_outbox.storage.operating.filters import DeadLetterFilter
from faststream_outbox.storage.operating.reads import Kind
from faststream_outbox.storage.postgres.acts.base import ActsBase
from faststream_outbox.storage.postgres.statements.acts.walks import Path, walk
from faststream_outbox.storage.postgres.statements.conditions import parameters
from faststream_outbox.storage.postgres.statements.statement import Statement

# The place before every row of a path.
_FIRST: Final[dict[Path, str]] = {"times": "-infinity", "failures": "-infinity"}
# The paths that are walked one after the other: rows without a key, then those with one.
_NEXT: Final[dict[Path, Path]] = {"times": "keys"}
_BEFORE_ALL_IDS: Final = -(2**63)


class SelectionActs(ActsBase):
    """Finds and reads rows; locks nothing."""

    def upper_id(self, session: Any, kind: Kind) -> int:
        """Return the highest id that the table has; 0 if it is empty."""
        statement = self._messages.upper_id if kind == "messages" else self._dead_letters.upper_id
        return int(self._execute(session, statement)[0][0])

    def walk(
        self, session: Any, kind: Kind, where: RowFilter, *, upper_id: int, after: WalkPosition | None, limit: int
    ) -> Walked:
        """Return the next ids of rows that match, along the index that fits the filter."""
        path, place, after_id = cast("tuple[Path, str, int]", _start(where) if after is None else after)
        statement = self._walk(kind, path, self._condition(where))
        values = parameters(where) | {"upper_id": upper_id, "limit": limit, "after": place, "after_id": after_id}
        given = {name: value for name, value in values.items() if name in statement.parameters}
        [[ids, end]] = self._execute(session, statement, **given)
        if end is not None:
            return Walked(ids or [], (path, end[0], int(end[1])))
        following = _NEXT.get(path)
        return Walked(ids or [], None if following is None else _beginning(following))

    @cache  # noqa: B019 - the statements live as long as the store
    def _walk(self, kind: Kind, path: Path, wanted: str) -> Statement:
        if kind == "messages":
            return walk(self._messages.table, "o", path, wanted)
        return walk(self._dead_letters.table, "d", path, wanted)

    def read_dead_letters(self, session: Any, ids: Sequence[int]) -> list[DeadLetterRow]:
        """Return rows of the dead-letter table, in the order of the ids."""
        records = self._execute(session, self._dead_letters.read, ids=list(ids))
        found = {fields[0]: DeadLetterRow(*fields) for fields in records}
        return [found[each] for each in ids if each in found]


def _start(where: RowFilter) -> WalkPosition:
    """Return the beginning of the path whose index fits a filter best."""
    if where.queue is None:
        return _beginning("ids")
    if isinstance(where, DeadLetterFilter):
        since = "-infinity" if where.failed_after is None else where.failed_after.isoformat()
        return ("failures", since, _BEFORE_ALL_IDS)
    if where.key is not None:
        return _beginning("key")
    if where.timer_id is not None:
        return _beginning("timer")
    if where.state == "parked":  # only rows with a key are parked
        return _beginning("keys")
    waits = where.state in ("delayed", "retrying")
    return ("times", "now", _BEFORE_ALL_IDS) if waits else _beginning("times")


def _beginning(path: Path) -> WalkPosition:
    return (path, _FIRST.get(path, ""), _BEFORE_ALL_IDS)
