"""Handlers that could not do what they ask for, told by their signatures."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, Final, get_origin, get_type_hints

from faststream.exceptions import SetupError

# What a list of messages can never be.
_SINGLE: Final = (int, float, str, bytes, bool, Mapping)


def check_asynchronous_handler(function: Callable[..., Any]) -> None:
    """Refuse a plain function where a session is asked for."""
    function = inspect.unwrap(function)
    if not inspect.iscoroutinefunction(function):
        name = _name(function)
        raise SetupError(
            f"{name}() asks for a session, which is asynchronous, and is a plain function, which cannot wait for it: "
            f"what it executes would never reach the database. Write async def {name}(…)."
        )


def check_batch_handler(function: Callable[..., Any]) -> None:
    """Refuse a function of one message where a list is given."""
    if (single := _takes_one(function)) is not None:
        raise SetupError(
            f"{_name(function)}() takes one message ({single}), and batch=True gives it a list: "
            f"annotate it as list[{single}], or leave batch=True out."
        )


def _takes_one(function: Callable[..., Any]) -> str | None:
    """Tell by its name the type of a handler's body if it is surely not a list; None where it may be one."""
    function = inspect.unwrap(function)
    try:
        hints = get_type_hints(function)  # without what is injected, which `Annotated` tells
        parameters = list(inspect.signature(function).parameters.values())
    except Exception:  # noqa: BLE001 - an annotation that cannot be resolved here; FastStream will say so
        return None
    if not parameters or parameters[0].default is not parameters[0].empty or _is_annotated(parameters[0]):
        return None
    hint = hints.get(parameters[0].name)
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and (issubclass(kind, _SINGLE) or is_dataclass(kind) or hasattr(kind, "model_fields")):
        return kind.__name__
    return None


def _is_annotated(parameter: inspect.Parameter) -> bool:
    return hasattr(parameter.annotation, "__metadata__") or isinstance(parameter.annotation, str)


def _name(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    return getattr(function, "__name__", str(function))
