"""A session that others use and only we commit."""

from collections.abc import Callable

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Session


def refuse_commits(session: Session, connection: AsyncConnection) -> Callable[[], None]:
    """Make `session.commit()` and that of its connection raise, and return what allows it. Savepoints work as ever.

    Example:
        allow_commit = refuse_commits(session.sync_session, await session.connection())
        ...  # the handler
        allow_commit()
        await session.commit()

    """
    allowed = False

    def allow() -> None:
        nonlocal allowed
        allowed = True

    def refuse(_: object) -> None:
        if not allowed and not session.in_nested_transaction():
            raise RuntimeError(
                "The inbox commits this session when the handler has returned. A commit before that would keep one "
                "half of what it does if the rest fails: remove session.commit(), and use flush() to see what was "
                "written."
            )

    def refuse_on(connection: Connection) -> None:
        try:
            refuse(connection)
        except RuntimeError:
            # An error at this point leaves SQLAlchemy unaware of what is open, and the pool would hand it on.
            connection.invalidate()
            raise

    event.listen(session, "before_commit", refuse)
    event.listen(connection.sync_connection, "commit", refuse_on)
    return allow
