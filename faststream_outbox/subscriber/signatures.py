"""Reads what a handler asks for by its signature (a session, one message or a list), and refuses what cannot work."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from fast_depends.dependencies import Dependant
from faststream.exceptions import SetupError
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox._faststream import HandlerItem, LoopContext

# Types that a list of messages can never be.
_SINGLE: Final = (int, float, str, bytes, bool, Mapping)


class SharesTransaction:
    """Marks the annotations by which a handler asks for the session of its message."""


SHARES_TRANSACTION: Final = SharesTransaction()
# The session in FastStream's context: `OutboxMessage.session`.
SESSION: Final = "message.session"


OutboxSession = Annotated[AsyncSession, LoopContext(SESSION), SHARES_TRANSACTION]
"""The session of the transaction that deletes the message; it is committed after the handler has returned."""


def asks_for_session(call: HandlerItem[Any], broker_dependencies: Iterable[Dependant]) -> bool:
    """Return whether a handler, or one of its dependencies, has a parameter for the session."""
    seen = set[Any]()
    dependencies = (each.dependency for each in (*broker_dependencies, *call.dependencies))
    return any(_asks(function, seen) for function in (_function(call), *dependencies))


def _asks(function: Callable[..., Any], seen: set[Any]) -> bool:
    function = inspect.unwrap(function)
    if function in seen:
        return False
    seen.add(function)
    marks = list(_marks(function))
    if any(isinstance(mark, SharesTransaction) for mark in marks):
        return True
    # Depends(…) of FastStream or FastAPI, in an annotation or as a default.
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


def is_asynchronous(call: HandlerItem[Any]) -> bool:
    """Return whether a handler is `async def`; a plain function runs in a thread."""
    return inspect.iscoroutinefunction(_function(call))


def check_handler(call: HandlerItem[Any], broker_dependencies: Iterable[Dependant], *, takes_list: bool) -> None:
    """Raise `SetupError` for a plain function that asks for a session, or that takes one message instead of a list."""
    name = getattr(_function(call), "__name__", str(_function(call)))
    if not is_asynchronous(call) and asks_for_session(call, broker_dependencies):
        raise SetupError(
            f"{name}() asks for a session, which is asynchronous, and is a plain function, which cannot wait for it: "
            f"what it executes would never reach the database. Write async def {name}(…)."
        )
    if takes_list and (single := _takes_one(_function(call))) is not None:
        raise SetupError(
            f"{name}() takes one message ({single}), and batch=True gives it a list: "
            f"annotate it as list[{single}], or leave batch=True out."
        )


def _function(call: HandlerItem[Any]) -> Callable[..., Any]:
    """Return the function that a user declared as a handler."""
    function: Callable[..., Any] = inspect.unwrap(call.handler._declared_call)  # noqa: SLF001 - as FastStream does
    return function


def _takes_one(function: Callable[..., Any]) -> str | None:
    """Return the name of the type of a handler's body if that is surely no list, else None."""
    try:
        hints = get_type_hints(function)  # without `Annotated`, by which parameters are injected
        parameters = list(inspect.signature(function).parameters.values())
    except Exception:  # noqa: BLE001 - an annotation that cannot be resolved here; FastStream will say so
        return None
    if not parameters or parameters[0].default is not inspect.Parameter.empty:
        return None
    annotation, hint = parameters[0].annotation, hints.get(parameters[0].name)
    if hasattr(annotation, "__metadata__") or isinstance(annotation, str):
        return None
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and (issubclass(kind, _SINGLE) or is_dataclass(kind) or hasattr(kind, "model_fields")):
        return kind.__name__
    return None
