"""The check of locks: who keeps everybody else from a table, and whose end lets them go on."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from faststream_outbox.operations.doctor.examination import Examination
from faststream_outbox.operations.doctor.finding import Finding, literal, script, session_title
from faststream_outbox.storage.postgres.statements.examine.locks import LOCKS
from faststream_outbox.storage.rows import to_datetime

# Only what is there at a second look is named: vacuums and quick DDL lock a table for some milliseconds.
_BETWEEN_LOOKS: Final = 1.0
# How much of a statement is shown, and what is left out of it: values.
_LONGEST_STATEMENT: Final = 200
_VALUE: Final = re.compile(r"'(?:[^']|'')*'")
# What Postgres shows instead of a statement to roles that may not see it.
_NOT_SHOWN: Final = ("", "<insufficient privilege>")


@dataclass(frozen=True, slots=True)
class _Lock:
    """A strong lock, and the transaction whose end gives others their turn, in the order of the statement `LOCKS`.

    `root` is the process of that transaction, `locker` the one that holds or awaits the lock: the same one, if it
    waits for nobody.
    """

    root: int
    prepared: str
    role: str
    label: str
    state: str
    began: float | None
    statement: str
    locker: int
    locker_role: str
    locker_label: str
    locker_statement: str
    table: int
    mode: str
    waiting: float | None

    @property
    def holds(self) -> bool:
        """Whether the transaction itself has the lock."""
        return self.root == self.locker

    @property
    def identity(self) -> tuple[int, str, int]:
        """By what the same lock is found again."""
        return self.root, self.prepared, self.locker


async def check_locks(examination: Examination) -> AsyncIterator[Finding]:
    """Name transactions that keep others from the tables, by a strong lock or because a strong lock waits for them."""
    before = {lock.identity for lock in await _look(examination)}
    if not before:
        return
    await asyncio.sleep(_BETWEEN_LOOKS)
    roots: dict[tuple[int, str], list[_Lock]] = {}
    for lock in await _look(examination):
        if lock.identity in before:
            roots.setdefault((lock.root, lock.prepared), []).append(lock)
    names = {found.oid: found.name for found in examination.found.values()}
    for locks in roots.values():
        # The locks that it holds come first.
        lock = locks[0]
        held = [each for each in locks if each.locker == lock.locker]
        yield _finding(lock, ", ".join(dict.fromkeys(f"{names[each.table]} ({each.mode})" for each in held)))


async def _look(examination: Examination) -> Sequence[_Lock]:
    oids = [found.oid for found in examination.found.values()]
    return [_Lock(*record) for record in await examination.fetch(LOCKS, oids=oids)]


def _finding(lock: _Lock, locked: str) -> Finding:
    title = session_title(str(lock.root), lock.role, lock.label, lock.state)
    if not lock.root:
        title = f"The prepared transaction {lock.prepared} (role {lock.role or 'unknown'})"
    since = lock.began if lock.holds and lock.began is not None else lock.waiting
    if lock.holds:
        what = f"{title} has locked {locked}.{_shown(' Its last statement', lock.statement)}"
    else:
        waits = session_title(str(lock.locker), lock.locker_role, lock.locker_label, "")
        what = (
            f"{waits} waits for a lock on {locked}, and everybody else waits behind it."
            f"{_shown(' Its statement', lock.locker_statement)} It waits for the end of a transaction. {title} has "
            f"it open.{_shown(' The last statement there', lock.statement)}"
        )
    return Finding(
        "locks",
        "error",
        what,
        None if since is None else to_datetime(since),
        "Until that ends, nothing is published, claimed or settled there, and programs fail or hang.",
        _cure(lock),
        script(
            f"SELECT pg_terminate_backend({lock.root})" if lock.root else f"ROLLBACK PREPARED {literal(lock.prepared)}"
        ),
    )


def _cure(lock: _Lock) -> str:
    cure = "Ask its transaction manager whether to commit it. If nobody knows it any more, roll it back."
    if lock.root:
        cure = (
            "If it is at work, such as a migration, let it come to its end. Otherwise end its transaction, or its "
            "session: its own role may do that, and members of pg_signal_backend."
        )
    if not lock.holds and lock.locker:
        cure += f" Or cancel the statement that waits, and run it again later: SELECT pg_cancel_backend({lock.locker});"
    return cure


def _shown(name: str, statement: str) -> str:
    """Return the beginning of a statement in one line, without values, as a sentence; nothing if it is not known."""
    if statement in _NOT_SHOWN:
        return ""
    line = _VALUE.sub("'…'", " ".join(statement.split())).rstrip("; ")
    return f"{name}: {line if len(line) <= _LONGEST_STATEMENT else line[:_LONGEST_STATEMENT] + '…'}."
