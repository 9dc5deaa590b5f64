"""Run callbacks after the caller's transaction has been committed."""

from collections.abc import Callable, Hashable
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction

from faststream_outbox.storage.sessions.raw import AsyncDriverConnection, DriverConnection, raw_connection

AnySession = (
    AsyncSession
    | async_scoped_session[AsyncSession]
    | AsyncConnection
    | Session
    | Connection
    | AsyncDriverConnection
    | DriverConnection
    | None
)

# Callbacks that wait for the commit are in the session's `info` under this key.
_PENDING: Final = "faststream_outbox.after_commit"


def sync_session_of(session: AnySession) -> Session | None:
    """Return the synchronous session of a session; None for a connection."""
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        session = session.sync_session
    return session if isinstance(session, Session) else None


def may_notify(session: AnySession) -> bool:
    """Return whether a session's transaction may send NOTIFY: Postgres cannot prepare one that does."""
    behind = sync_session_of(session)
    return behind is not None and not behind.twophase


def in_savepoint(session: AnySession) -> bool:
    """Return whether a session is in a savepoint, which may be rolled back alone."""
    behind = sync_session_of(session)
    return behind is not None and behind.in_nested_transaction()


def keeps_insert(session: Any) -> bool:
    """Return whether a row that is inserted now is kept although nobody begins a transaction for it.

    That is so in a transaction that is open, which its owner commits, and where each statement commits itself.
    """
    if (raw := raw_connection(session)) is not None:
        return raw.in_transaction
    try:
        if session.in_transaction():
            return True
        bind: Any = session.sync_connection if isinstance(session, AsyncConnection) else session.get_bind()
        return (isinstance(bind, Connection) and bind.in_transaction()) or autocommits(bind)
    except SQLAlchemyError:  # a connection that was closed or never opened, a session without an engine
        return False


def after_commit(
    session: AnySession, callback: Callable[[], None], *, key: Hashable = None, table: Table | None = None
) -> Callable[[], None] | None:
    """Call `callback` after the session's outermost transaction has been committed, and never after its rollback.

    Returns None, and arranges nothing, if the commit cannot be observed: for a connection, a session that is bound to a
    connection, an engine in autocommit. Of callbacks with the same `key` a transaction keeps the first, which is
    returned. `table` selects the engine of a session that has several. The callback runs in the thread that commits and
    must not raise. It stays if a savepoint is rolled back.

    Example:
        if not after_commit(session, wake, key="orders"):
            ...  # notify in the transaction itself

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
        return False  # the insert will raise the same error
    return isinstance(bind, Engine) and not autocommits(bind)


def autocommits(bind: Engine | Connection) -> bool:
    """Return whether an engine or a connection commits each statement by itself."""
    return _isolation_asked_of(bind) == "AUTOCOMMIT"


def is_strict(connection: Connection) -> bool:
    """Return whether a transaction fails at rows that were changed after it began."""
    level = _isolation_asked_of(connection) or connection.dialect.default_isolation_level
    return level in ("REPEATABLE READ", "SERIALIZABLE")


def _isolation_asked_of(bind: Engine | Connection) -> str | None:
    # `create_engine(isolation_level=…)` stores it in the second; there is no public name for it.
    level: str | None = bind.get_execution_options().get("isolation_level")
    return level or getattr(bind.dialect, "_on_connect_isolation_level", None)


def _committed(session: Session) -> None:
    # SQLAlchemy calls this for a released savepoint too, when nothing is committed yet.
    if _PENDING in session.info and not session.in_nested_transaction():
        pending: dict[Any, Callable[[], None]] = session.info.pop(_PENDING)
        for callback in pending.values():
            callback()


def _ended(session: Session, transaction: SessionTransaction) -> None:
    # After a commit none is left; after a rollback they must not run.
    if transaction.parent is None:
        session.info.pop(_PENDING, None)


# On the class, once, which covers every session: publishing need not add listeners.
event.listen(Session, "after_commit", _committed)
event.listen(Session, "after_transaction_end", _ended)
