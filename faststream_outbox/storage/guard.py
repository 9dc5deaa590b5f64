"""A session that others use and only we commit."""

from collections.abc import Callable

from sqlalchemy import event
from sqlalchemy.orm import Session


def refuse_commits(session: Session) -> Callable[[], None]:
    """Make `session.commit()` raise, and return what allows it again. Savepoints are released as ever.

    Example:
        allow_commit = refuse_commits(session)
        ...  # the handler
        allow_commit()
        session.commit()

    """

    def refuse(session: Session) -> None:
        if not session.in_nested_transaction():
            raise RuntimeError(
                "The inbox commits this session when the handler has returned. A commit before that would keep one "
                "half of what it does if the rest fails: remove session.commit(), and use flush() to see what was "
                "written."
            )

    event.listen(session, "before_commit", refuse)
    return lambda: event.remove(session, "before_commit", refuse)
