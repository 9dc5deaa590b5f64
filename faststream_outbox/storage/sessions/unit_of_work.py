"""What waits in a session for its commit: written just before it, dropped with a rollback or with its savepoint."""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, UOWTransaction

# The unit of work of a session is in its `info` under this key.
_UNIT: Final = "faststream_outbox.unit_of_work"
# A flush may change objects again, through listeners; SQLAlchemy gives up after as many.
_MOST_FLUSHES: Final = 100


class Writer(Protocol):
    """Writes what was collected for it."""

    @property
    def place(self) -> str:
        """By which writers of one session are sorted, so that all transactions take their locks in the same order."""

    def line_of(self, item: Any) -> Hashable:
        """Return what this item has in common with all items that must be written in their order."""

    def write(self, session: Session, items: Sequence[Any]) -> None:
        """Write the items in the session's transaction."""


class _Counts(NamedTuple):
    """How much a session had collected when a savepoint began."""

    waiting: int = 0
    inserted: int = 0
    taken: int = 0


class UnitOfWork:
    """The items that one session has collected, in their order, each with its writer.

    Example:
        unit = UnitOfWork.of(session)
        unit.add(session, writer, row)  # writer.write(session, [row]) is called before the session's commit

    """

    def __init__(self, session: Session) -> None:
        self._waiting: list[tuple[Writer, Any]] = []
        # How many of them are written already, in a savepoint that may yet be rolled back.
        self._inserted = 0
        # What was taken from objects in this transaction, each with its object.
        self.taken: list[tuple[object, Any]] = []
        # The savepoints that are open, outermost first, each with what there was when it began.
        self._savepoints: list[tuple[SessionTransaction, _Counts]] = []
        self._written = False
        self._releasing = False
        self._committed: SessionTransaction | None = None
        # The writer of what objects record; what takes it from them after a flush, and gives it back after a rollback
        # to those that are new again.
        self.event_writer: Writer | None = None
        self.take_events: Callable[[Iterable[object]], None] | None = None
        self.return_events: Callable[[Sequence[tuple[object, Any]]], None] | None = None
        savepoint = session.get_nested_transaction()
        while savepoint is not None:
            if savepoint.nested:
                self._savepoints.insert(0, (savepoint, _Counts()))
            savepoint = savepoint.parent

    @staticmethod
    def of(session: Session) -> "UnitOfWork":
        """Return the unit of work of a session, made at the first call."""
        unit: UnitOfWork | None = session.info.get(_UNIT)
        if unit is None:
            unit = session.info[_UNIT] = UnitOfWork(session)
        return unit

    def add(self, session: Session, writer: Writer, item: Any) -> None:
        """Keep an item for the commit of the session's transaction, which begins here if there is none."""
        if self._written:
            raise RuntimeError(
                "This session is committing, and what it had collected is written already: publish before its commit, "
                "or in a listener of before_flush."
            )
        if not session.in_transaction():
            # A transaction whose end tells what becomes of the item: as `session.add` begins one.
            if not session.autobegin:
                raise RuntimeError(
                    "This session is in no transaction, and begins none by itself: session.begin() first."
                )
            session.begin()
        self._waiting.append((writer, item))

    def last(self, writer: Writer) -> Any:
        """Return the last item that waits for this writer; None without one."""
        for each, item in reversed(self._waiting):  # nearly always the first that is looked at
            if each is writer:
                return item
        return None

    def before_commit(self, session: Session) -> None:
        """Write all items, unless only a savepoint is released."""
        if session.in_nested_transaction() and not self._releasing:
            # A savepoint is released, or a transaction commits around an open savepoint, which is released before it:
            # then this is called once more.
            self._releasing = True
            return
        for _ in range(_MOST_FLUSHES):
            session.flush()
            if not (session.new or session.dirty or session.deleted):
                break
        self._write(session)
        self._written = not session.in_nested_transaction()

    def write_before(self, session: Session, lines: Callable[[], Collection[Hashable]]) -> None:
        """Write all items, if one of them is in one of these lines and not written yet."""
        if self._inserted < len(self._waiting):
            found = lines()
            if any(writer.line_of(item) in found for writer, item in self._waiting[self._inserted :]):
                self._write(session)

    def _write(self, session: Session) -> None:
        """Write all items that are not written yet."""
        items: defaultdict[Writer, list[Any]] = defaultdict(list)
        for writer, item in self._waiting[self._inserted :]:
            items[writer].append(item)
        # They stay: after the rollback of a savepoint in which they were written, the next commit writes them again. So
        # does a commit that is tried again after an error. Counted before, because a writer asks for what is before.
        inserted, self._inserted = self._inserted, len(self._waiting)
        try:
            for writer in sorted(items, key=lambda each: each.place):
                writer.write(session, items[writer])
        except BaseException:
            self._inserted = inserted
            raise

    def after_flush(self, session: Session) -> None:
        """Take the events of the objects that were written."""
        if self.take_events is not None:
            self.take_events([*session.new, *session.dirty, *session.deleted])

    def began(self, savepoint: SessionTransaction) -> None:
        """Record how many items wait when a savepoint begins."""
        around, parent = set(), savepoint.parent
        while parent is not None:
            around.add(parent)
            parent = parent.parent
        while self._savepoints and self._savepoints[-1][0] not in around:
            self._savepoints.pop()  # it has ended
        self._savepoints.append((savepoint, _Counts(len(self._waiting), self._inserted, len(self.taken))))

    def committed(self, session: Session) -> None:
        """Record that the innermost transaction was committed: its end follows."""
        self._committed = session.get_nested_transaction() or session.get_transaction()

    def ended(self, transaction: SessionTransaction) -> None:
        """Drop what was added in a transaction that was not committed; begin anew after the outermost."""
        self._releasing = False
        outermost = transaction.parent is None
        if not (outermost or transaction.nested):
            return  # the inner transaction of a flush
        if transaction is not self._committed:
            self._drop(transaction)
        self._committed = None
        if outermost:
            self._savepoints.clear()
            self._waiting.clear()
            self.taken.clear()
            self._inserted = 0
            self._written = False

    def _drop(self, transaction: SessionTransaction) -> None:
        """Drop the items that were added since a savepoint, or the outermost transaction, began."""
        counts = _Counts()
        for number, (savepoint, then) in enumerate(self._savepoints):
            if savepoint is transaction:
                counts = then
                del self._savepoints[number:]
                break
        else:
            if transaction.parent is not None:
                return  # it began before anything was collected
        del self._waiting[counts.waiting :]
        self._inserted = min(self._inserted, counts.inserted)
        taken = self.taken[counts.taken :]
        del self.taken[counts.taken :]
        if taken and self.return_events is not None:
            self.return_events(taken)


def write_before(session: Session, lines: Callable[[], Collection[Hashable]]) -> None:
    """Write what a session has collected, if some of it comes before what is going to be written in these lines."""
    if _UNIT in session.info:
        session.info[_UNIT].write_before(session, lines)


def _before_commit(session: Session) -> None:
    if _UNIT in session.info:
        session.info[_UNIT].before_commit(session)


def _after_commit(session: Session) -> None:
    if _UNIT in session.info:
        session.info[_UNIT].committed(session)


def _after_flush(session: Session, _context: UOWTransaction) -> None:
    if _UNIT in session.info:
        session.info[_UNIT].after_flush(session)


def _created(session: Session, transaction: SessionTransaction) -> None:
    if _UNIT in session.info and transaction.nested:
        session.info[_UNIT].began(transaction)


def _ended(session: Session, transaction: SessionTransaction) -> None:
    if _UNIT in session.info:
        session.info[_UNIT].ended(transaction)


# On the class, once, which covers every session, as in `commits`. The guard of a handler's session comes before.
event.listen(Session, "before_commit", _before_commit)
event.listen(Session, "after_flush", _after_flush)
event.listen(Session, "after_transaction_create", _created)
event.listen(Session, "after_commit", _after_commit)
event.listen(Session, "after_transaction_end", _ended)
