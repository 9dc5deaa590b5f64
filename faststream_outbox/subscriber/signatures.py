"""What a handler's annotations say of the bodies that it takes."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, Final, get_origin, get_type_hints

# What a list of messages can never be.
_SINGLE: Final = (int, float, str, bytes, bool, Mapping)


def takes_one(function: Callable[..., Any]) -> str | None:
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
