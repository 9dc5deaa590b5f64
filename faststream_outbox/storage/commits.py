"""What is done once the caller's transaction is known to be committed, and not before."""

from collections.abc import Callable, Hashable
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction

AnySession = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection | Session | Connection | None

# Where a session keeps, in its `info`, what waits for its commit.
_PENDING: Final = "faststream_outbox.after_commit"


def sync_session_of(session: AnySession) -> Session | None:
    """Find the session behind whatever was given; none stands behind a connection."""
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        session = session.sync_session
    return session if isinstance(session, Session) else None


def may_notify(session: AnySession) -> bool:
    """Tell whether a session's transaction may carry a notification: one that does cannot be prepared."""
    behind = sync_session_of(session)
    return behind is not None and not behind.twophase


def after_commit(
    session: AnySession, callback: Callable[[], None], *, key: Hashable = None, table: Table | None = None
) -> Callable[[], None] | None:
    """Call `callback` after the session's outermost transaction has been committed, and never after its rollback.

    None, with nothing arranged, where no such moment can be known: a connection, a session on somebody's connection, an
    engine in autocommit. `key` stands for the callback: of those with the same key a transaction keeps the first, which
    is returned. `table` tells a session that has several engines which one is meant. The callback runs in whatever
    thread commits, and must not raise. A savepoint that is rolled back does not take it along.

    Example:
        if not after_commit(session, wake, key="orders"):
            ...  # tell others in the transaction itself

    """
    behind = sync_session_of(session)
    if behind is None:
        return None
    key = callback if key is None else key
    pending: dict[Hashable, Callable[[], None]] | None = behind.info.get(_PENDING)
    if pending is not None and key in pending:
        return pending[key]
    if not _commits(behind, table):
        return None
    behind.info.setdefault(_PENDING, {})[key] = callback
    return callback


def _commits(session: Session, table: Table | None) -> bool:
    try:
        bind = session.get_bind(clause=table)
    except SQLAlchemyError:
        return False  # whatever is published through it will say what is wrong
    return isinstance(bind, Engine) and not autocommits(bind)


def autocommits(engine: Engine) -> bool:
    """Tell whether an engine was made to commit each statement by itself."""
    return _isolation_asked_of(engine) == "AUTOCOMMIT"


def is_strict(connection: Connection) -> bool:
    """Tell whether a transaction fails at rows that were changed after it began."""
    level = _isolation_asked_of(connection) or connection.dialect.default_isolation_level
    return level in ("REPEATABLE READ", "SERIALIZABLE")


def _isolation_asked_of(bind: Engine | Connection) -> str | None:
    # The second is where `create_engine(isolation_level=…)` leaves it; there is no public name for it.
    level: str | None = bind.get_execution_options().get("isolation_level")
    return level or getattr(bind.dialect, "_on_connect_isolation_level", None)


def _committed(session: Session) -> None:
    # This comes for a released savepoint too, when nobody else can see anything yet.
    if _PENDING in session.info and not session.in_nested_transaction():
        pending: dict[Any, Callable[[], None]] = session.info.pop(_PENDING)
        for callback in pending.values():
            callback()


def _ended(session: Session, transaction: SessionTransaction) -> None:
    # However it ended; after a commit there is nothing left.
    if transaction.parent is None:
        session.info.pop(_PENDING, None)


# On the class, once, and so on every session there is: publishing then adds no listener of its own.
event.listen(Session, "after_commit", _committed)
event.listen(Session, "after_transaction_end", _ended)
