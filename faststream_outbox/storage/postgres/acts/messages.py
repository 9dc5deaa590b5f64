"""Acts on messages of the Postgres store: each locks what it can have at once, and says why it left the rest."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy.exc import IntegrityError

from faststream_outbox.storage.operating.acts import (
    AFTER_LEFT,
    ALREADY_THERE,
    GONE,
    HOLDS_KEY,
    IN_FLIGHT,
    KEY_IN_FLIGHT,
    LOCKED,
    OTHER,
    PUBLISHING,
    TIMER_WAITS,
    WHY_NOT_NOW,
    Acted,
    Keys,
)
from faststream_outbox.storage.operating.filters import MessageFilter
from faststream_outbox.storage.postgres.acts.base import ActsBase, check_isolation
from faststream_outbox.storage.postgres.statements.acts.messages import CAN_COME, CAN_GO, KEYS
from faststream_outbox.storage.postgres.statements.conditions import parameters


class _Row(NamedTuple):
    """A row that is locked."""

    id: int
    queue: str
    key: str | None
    timer_id: str | None


class MessageActs(ActsBase):
    """Delivers, discards and moves messages."""

    def deliver_now(self, session: Any, ids: Sequence[int], where: MessageFilter | None) -> Acted:
        """Make rows due that wait for a time; parked rows are left to the acts on keys."""
        wanted, asked = f"{self._condition(where)} AND {CAN_COME}", parameters(where)
        statement = self._messages.lock(wanted, whole_keys=False)
        rows = [_Row(*record) for record in self._execute(session, statement, ids=list(ids), **asked)]
        if rows:
            self._execute(session, self._messages.deliver_now, ids=[row.id for row in rows])
        acted = Acted(len(rows), queues={row.queue for row in rows})
        for each, _, _, state, _, matches, _ in self._explain(session, ids, rows, where, acted):
            acted.skipped[each] = WHY_NOT_NOW.get(state) or (LOCKED if matches else OTHER)
        return acted

    def discard(self, session: Any, ids: Sequence[int], where: MessageFilter | None) -> Acted:
        """Delete rows that no process handles."""
        heads, rows = self._take(session, ids, where, CAN_GO)
        acted = Acted(len(rows), queues={row.queue for row in rows if row.key is not None})
        if rows:
            self._execute(session, self._messages.delete, ids=[row.id for row in rows])
            self._rewrite_heads(session, heads, rows)
        self._explain_left(session, ids, rows, where, acted)
        return acted

    def move(self, session: Any, ids: Sequence[int], where: MessageFilter | None, queue: str, left: Keys) -> Acted:
        """Move rows to another queue; those of a key keep their order, behind what waits there of the same key."""
        heads, rows = self._take(session, ids, where, f"{CAN_GO} AND o.queue <> :target::text", target=queue)
        acted = Acted()
        self._explain_left(session, ids, rows, where, acted, target=queue, left=left)
        rows = self._in_order(rows, left, acted)
        rows = self._with_free_stripes(session, rows, queue, left, acted)
        rows = self._with_free_timers(session, rows, queue, left, acted)
        moved = self._move(session, rows, queue, left, acted)
        self._rewrite_heads(session, heads, moved)
        acted.done = len(moved)
        acted.queues = {queue, *(row.queue for row in moved if row.key is not None)} if moved else set()
        return acted

    def _take(
        self, session: Any, ids: Sequence[int], where: MessageFilter | None, needs: str, **needed: Any
    ) -> tuple[dict[tuple[str, str], int], list[_Row]]:
        """Lock rows that match and, before them, the heads of their keys; return both, the rows by their ids."""
        wanted = f"{self._condition(where)} AND {needs}"
        asked = {"ids": sorted(ids), **parameters(where), **needed}
        heads = self._execute(session, self._messages.lock_heads(wanted), **asked)
        of_keys = {(queue, key): head for head, queue, key in heads}
        locked = self._execute(session, self._messages.lock(wanted, whole_keys=True), **asked, **KEYS.fill([*of_keys]))
        return of_keys, sorted(_Row(*record) for record in locked)

    def _rewrite_heads(self, session: Any, heads: dict[tuple[str, str], int], taken: Sequence[_Row]) -> None:
        """Rewrite the heads that stay while rows behind them were taken away; see the statements."""
        gone = {row.id for row in taken}
        keys = {(row.queue, row.key) for row in taken if row.key is not None}
        stay = sorted(head for key, head in heads.items() if key in keys and head not in gone)
        if stay:
            self._execute(session, self._messages.rewrite, ids=stay)

    def _explain(
        self, session: Any, ids: Sequence[int], rows: Sequence[_Row], where: MessageFilter | None, acted: Acted
    ) -> list[Sequence[Any]]:
        """Return what is known of rows that were not locked; write down those that are gone."""
        missed = sorted(set(ids).difference(row.id for row in rows))
        if not missed:
            return []
        statement = self._messages.explain(self._condition(where))
        found = self._execute(session, statement, ids=missed, **parameters(where))
        acted.skipped.update(dict.fromkeys(set(missed).difference(record[0] for record in found), GONE))
        return list(found)

    def _explain_left(
        self,
        session: Any,
        ids: Sequence[int],
        rows: Sequence[_Row],
        where: MessageFilter | None,
        acted: Acted,
        *,
        target: str | None = None,
        left: Keys | None = None,
    ) -> None:
        for each, queue, key, state, key_in_flight, matches, holds in self._explain(session, ids, rows, where, acted):
            stays = True  # and with it, in a move, what is behind it in its key
            if state == "in_flight":
                why = IN_FLIGHT
            elif key_in_flight:
                why = KEY_IN_FLIGHT
            elif holds:
                why = HOLDS_KEY
            elif queue == target:
                why, stays = ALREADY_THERE, False
            else:
                why, stays = (LOCKED, True) if matches else (OTHER, False)
            acted.skipped[each] = why
            if stays and left is not None and key is not None:
                left[queue, key] = min(each, left.get((queue, key), each))

    @staticmethod
    def _in_order(rows: Sequence[_Row], left: Keys, acted: Acted) -> list[_Row]:
        """Leave out rows behind one of their key that was left: moved later, that one would be behind them."""
        passed = list[_Row]()
        for row in rows:
            if row.key is not None and left.get((row.queue, row.key), row.id) < row.id:
                acted.skipped[row.id] = AFTER_LEFT
            else:
                passed.append(row)
        return passed

    def _leave(self, rows: Sequence[_Row], left: Keys, acted: Acted, why: dict[int, str]) -> list[_Row]:
        """Leave out these rows, and those behind them in their keys; return the others."""
        acted.skipped.update(why)
        for row in rows:
            if row.id in why and row.key is not None:
                left[row.queue, row.key] = min(row.id, left.get((row.queue, row.key), row.id))
        return self._in_order([row for row in rows if row.id not in why], left, acted)

    def _with_free_stripes(self, session: Any, rows: list[_Row], queue: str, left: Keys, acted: Acted) -> list[_Row]:
        """Lock the keys of the target as publishers do, and leave rows of those that publishers have locked."""
        keys = sorted({row.key for row in rows if row.key is not None})
        if not keys:
            return rows
        [[isolation, free]] = self._execute(session, self._messages.lock_stripes, queue=queue, keys=keys)
        check_isolation(isolation)
        busy = set(keys).difference(free or ())
        return self._leave(rows, left, acted, {row.id: PUBLISHING for row in rows if row.key in busy})

    def _with_free_timers(self, session: Any, rows: list[_Row], queue: str, left: Keys, acted: Acted) -> list[_Row]:
        timers = [row.timer_id for row in rows if row.timer_id is not None]
        if not timers:
            return rows
        waiting = {each for [each] in self._execute(session, self._messages.waiting_timers, queue=queue, timers=timers)}
        seen = set[str]()
        why = dict[int, str]()
        for row in rows:
            if row.timer_id is not None and (row.timer_id in waiting or row.timer_id in seen):
                why[row.id] = TIMER_WAITS  # or two of the same name come from two queues
            elif row.timer_id is not None:
                seen.add(row.timer_id)
        return self._leave(rows, left, acted, why)

    def _move(self, session: Any, rows: list[_Row], queue: str, left: Keys, acted: Acted) -> list[_Row]:
        """Move rows; if a publisher has set a timer of the same name at this moment, leave the timers."""
        if not any(row.timer_id for row in rows):
            self._move_all(session, rows, queue)
            return rows
        try:
            with session.begin_nested():
                self._move_all(session, rows, queue)
        except IntegrityError:
            rows = self._leave(rows, left, acted, {row.id: TIMER_WAITS for row in rows if row.timer_id is not None})
            self._move_all(session, rows, queue)
        return rows

    def _move_all(self, session: Any, rows: Sequence[_Row], queue: str) -> None:
        plain = [row.id for row in rows if row.key is None]
        keyed = [row.id for row in rows if row.key is not None]
        if plain:
            self._execute(session, self._messages.move, ids=plain, queue=queue)
        if keyed:
            self._execute(session, self._messages.move_keyed, ids=keyed, queue=queue)
