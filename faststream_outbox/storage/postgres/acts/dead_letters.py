"""Acts on dead letters of the Postgres store."""

from collections.abc import Sequence
from typing import Any

from faststream_outbox.storage.operating.acts import GONE, LOCKED, OTHER, Acted
from faststream_outbox.storage.operating.filters import DeadLetterFilter
from faststream_outbox.storage.postgres.acts.base import ActsBase
from faststream_outbox.storage.postgres.statements.conditions import parameters


class DeadLetterActs(ActsBase):
    """Deletes dead letters."""

    def purge(self, session: Any, ids: Sequence[int], where: DeadLetterFilter | None) -> Acted:
        """Delete dead letters that match and that no other transaction is changing."""
        statements, wanted, asked = self._dead_letters, self._condition(where), parameters(where)
        locked = [each for [each] in self._execute(session, statements.lock(wanted), ids=list(ids), **asked)]
        acted = Acted(len(self._execute(session, statements.delete, ids=sorted(locked)))) if locked else Acted()
        if missed := sorted(set(ids).difference(locked)):
            found = dict(map(tuple, self._execute(session, statements.explain(wanted), ids=missed, **asked)))
            acted.skipped = {each: _why_left(found.get(each)) for each in missed}
        return acted


def _why_left(matches: bool | None) -> str:
    return GONE if matches is None else LOCKED if matches else OTHER
