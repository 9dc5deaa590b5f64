"""`Selection`: the rows that an act is for, frozen when it is made."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from faststream_outbox.operations.base import OperationsBase
from faststream_outbox.operations.views import DeadLetter, Message
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_count
from faststream_outbox.storage.operating.acts import RowFilter
from faststream_outbox.storage.operating.filters import COUNT_CAP, Count, DeadLetterFilter, MessageFilter
from faststream_outbox.storage.operating.reads import Kind

# How many rows a selection shows.
_SAMPLE: Final = 10
# How many statements count a selection at most. Each compares a bounded number of rows, so `select` ends soon even if
# few rows of a large table match.
_COUNTS: Final = 10

_FILTERS: Final[Mapping[Kind, type[RowFilter]]] = {"messages": MessageFilter, "dead_letters": DeadLetterFilter}


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows to act on: those with some ids, or those that match a filter and were there when it was made.

    An act compares each row with the filter again, and leaves out rows whose ids are higher than `upper_id`: rows that
    are published later are never caught. Only a message whose transaction had drawn its id, and was not committed
    yet, when the selection was made may still join it.

    Attributes:
        kind: `"messages"` or `"dead_letters"`.
        where: The filter; None if ids were given.
        ids: The ids, if ids were given.
        upper_id: The highest id that the table had when the selection was made.
        count: How many rows there were; counting stops at 10,000, or after so many rows that do not match.
        sample: The first of them, as they were.

    Example:
        selection = await operations.select(MessageFilter(queue="orders", state="retrying"))
        print(selection.count, [message.id for message in selection.sample])
        await operations.deliver_now(selection, reason="the payment provider is back")

    """

    kind: Kind
    where: RowFilter | None
    ids: tuple[int, ...]
    upper_id: int
    count: Count
    sample: tuple[Message | DeadLetter, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the selection, without its sample, as values that JSON can hold; `from_dict` makes it again."""
        where = None if self.where is None else {name: _plain(value) for name, value in self.where}
        return {
            "kind": self.kind,
            "where": where,
            "ids": list(self.ids),
            "upper_id": self.upper_id,
            "count": {"number": self.count.number, "capped": self.count.capped},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Selection":
        """Return the selection that `to_dict` has written.

        Args:
            values: What `to_dict` returned.

        Example:
            selection = Selection.from_dict(json.loads(text))

        """
        kind = values["kind"]
        if kind not in _FILTERS:
            raise ValueError(f"The kind of a selection is one of {', '.join(_FILTERS)}, not {kind!r}.")
        where = values.get("where")
        return cls(
            kind,
            None if where is None else _filter(kind, where),
            tuple(_check_ids(values.get("ids") or ())),
            int(values["upper_id"]),
            Count(**values["count"]),
        )

    def describe(self) -> dict[str, Any]:
        """Return what the audit keeps of it: the filter and its bound, or the first ids."""
        if self.where is None:
            return {"kind": self.kind, "ids": list(self.ids[:100])}
        return {"kind": self.kind, "where": self.to_dict()["where"], "upper_id": self.upper_id}


# What acts take: a selection, or ids.
Selected = Selection | Iterable[int] | int


class SelectionOperations(OperationsBase):
    """Makes selections."""

    async def select(self, where: RowFilter, *, session: SessionOrConnection | None = None) -> Selection:
        """Select the rows that match a filter and are there now; nothing is changed or locked.

        Args:
            where: A `MessageFilter` or a `DeadLetterFilter`.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            selection = await operations.select(
                DeadLetterFilter(queue="orders", exception_type="TimeoutError")
            )
            print(f"{selection.count} dead letters")

        """
        if not isinstance(where, MessageFilter | DeadLetterFilter):
            raise TypeError(f"where is a MessageFilter or a DeadLetterFilter, not {type(where).__name__}.")
        kind: Kind = "messages" if isinstance(where, MessageFilter) else "dead_letters"
        return await self._read(session, self._select, kind, where)

    def _select(self, session: Any, kind: Kind, where: RowFilter) -> Selection:
        acts = self._store.acts
        upper_id, found, after = acts.upper_id(session, kind), list[int](), None
        for _ in range(_COUNTS):
            limit = COUNT_CAP - len(found)
            ids, after = acts.walk(session, kind, where, upper_id=upper_id, after=after, limit=limit)
            found += ids
            if after is None or len(found) >= COUNT_CAP:
                break
        count = Count(len(found), capped=after is not None)
        return Selection(kind, where, (), upper_id, count, self._sample(session, kind, found[:_SAMPLE]))

    def _sample(self, session: Any, kind: Kind, ids: Sequence[int]) -> tuple[Message | DeadLetter, ...]:
        ids = ids[: self._store.admin.count_fitting(session, kind, ids)]
        if kind == "messages":
            return tuple(Message.each(self._store.admin.read_messages(session, ids)))
        return tuple(DeadLetter.of(row) for row in self._store.acts.read_dead_letters(session, ids))


def selection_of(selected: Selected, kind: Kind) -> Selection:
    """Return what an act was given as a selection; raise if it is for rows of the other kind."""
    if not isinstance(selected, Selection):
        ids = tuple(dict.fromkeys(_check_ids([selected] if isinstance(selected, int) else selected)))
        return Selection(kind, None, ids, max(ids, default=0), Count(len(ids)))
    if selected.kind != kind:
        raise ValueError(f"This act is for {kind.replace('_', ' ')}, and the selection has {selected.kind}.")
    return selected


def _check_ids(ids: Any) -> Iterable[int]:
    if isinstance(ids, MessageFilter | DeadLetterFilter):
        raise TypeError(f"Make a selection of the filter first: await operations.select({type(ids).__name__}(…)).")
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise TypeError(f"Give a selection, an id or several ids, not {ids!r}.")
    return [check_count("An id", each) for each in ids]


def _filter(kind: Kind, values: Mapping[str, Any]) -> RowFilter:
    type_ = _FILTERS[kind]
    unknown = values.keys() - {each.name for each in fields(type_)}
    if unknown:
        raise ValueError(f"{type_.__name__} has no {', '.join(sorted(unknown))}.")
    return type_(**{name: _value(name, value) for name, value in values.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return list(value) if isinstance(value, tuple) else value


def _value(name: str, value: Any) -> Any:
    if name.endswith(("_after", "_before")) and isinstance(value, str):
        return datetime.fromisoformat(value)
    return tuple(value) if isinstance(value, list) else value
