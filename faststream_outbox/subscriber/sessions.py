"""What a handler asks for a session with, and who asks."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, get_args, get_type_hints

from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.context import OnTheLoop


class SharesTransaction:
    """Marks the annotations by which a handler asks for its message's session."""


SHARES_TRANSACTION: Final = SharesTransaction()
# Where FastStream's context has it: `OutboxMessage.session`.
SESSION: Final = "message.session"


# The session of the transaction that deletes the message. It is committed when the handler has returned.
OutboxSession = Annotated[AsyncSession, OnTheLoop(SESSION), SHARES_TRANSACTION]


def asks_for_session(function: Callable[..., Any]) -> bool:
    """Tell whether a handler, or a dependency of its, is given a session."""
    return _asks(function, set())


def _asks(function: Callable[..., Any], seen: set[Any]) -> bool:
    function = inspect.unwrap(function)
    if function in seen:
        return False
    seen.add(function)
    marks = list(_marks(function))
    if any(isinstance(mark, SharesTransaction) for mark in marks):
        return True
    # Depends(…), FastStream's as FastAPI's, in an annotation or as a default.
    dependencies = (getattr(mark, "dependency", None) for mark in marks)
    return any(_asks(each, seen) for each in dependencies if callable(each))


def _marks(function: Callable[..., Any]) -> Iterable[Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation that cannot be resolved here; FastStream will say so
        hints = {}
    for parameter in parameters:
        yield parameter.default
        yield from get_args(hints.get(parameter.name, parameter.annotation))[1:]
