"""Calls a handler with the arguments that FastDepends would give it, without its exit stack and tasks."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from faststream.message import StreamMessage

from faststream_outbox._faststream import CallModel, ContextField, FastDependsConfig, HandlerItem, LoopContext

Invoke = Callable[[StreamMessage[Any]], Awaitable[Any]]

# The argument by which FastStream hands its context to fields that look a name up in it.
_CONTEXT: Final = "context__"
_BODY: Final = object()


def make_invoke(call: HandlerItem[Any], config: FastDependsConfig) -> Invoke:
    """Return a function that calls a handler with a message; a direct one if the handler has no dependencies."""
    model = call.dependant
    general: Invoke = call.handler._wrapped_call  # type: ignore[assignment]  # noqa: SLF001 - set when a subscriber starts
    if not config.use_fastdepends or not isinstance(model, CallModel) or not _is_simple(model):
        return general
    fields = [cast("ContextField", each) for each in model.custom_fields.values()]
    invoke = partial(_call, model, fields, (*model.keyword_args, *model.positional_args))
    fixed = {_CONTEXT: config.context}
    if len(model.params) > 1:
        return partial(_call_with_fields, invoke, fixed, general)
    return partial(_call_with_body, invoke, fixed, _name_of_body(model))


def _is_simple(model: CallModel) -> bool:
    """Return whether the arguments are only the body, or its parts, and lookups in FastStream's context."""
    return (
        inspect.iscoroutinefunction(model.call)
        and not (model.dependencies or model.extra_dependencies or model.args_name or model.kwargs_name)
        and all(map(_is_context_lookup, model.custom_fields.values()))
    )


def _is_context_lookup(field: Any) -> bool:
    """Return whether a field only reads the context; one with a factory may block, and needs a thread."""
    return type(field) in {ContextField, LoopContext} and field.initial is None


def _name_of_body(model: CallModel) -> str | None:
    """Return the parameter that gets the body; None if every parameter is a context lookup."""
    solving = model._solve(_BODY, cache_dependencies={})  # type: ignore[arg-type]  # noqa: SLF001 - FastDepends has no public way to ask
    _, arguments = next(solving)
    solving.close()
    return next((name for name, value in arguments.items() if value is _BODY), None)


async def _call_with_body(
    invoke: Callable[[dict[str, Any]], Awaitable[Any]],
    fixed: dict[str, Any],
    name: str | None,
    message: StreamMessage[Any],
) -> Any:
    body = await message.decode()
    return await invoke({**fixed} if name is None else {**fixed, name: body})


async def _call_with_fields(
    invoke: Callable[[dict[str, Any]], Awaitable[Any]],
    fixed: dict[str, Any],
    general: Invoke,
    message: StreamMessage[Any],
) -> Any:
    body = await message.decode()
    return await (invoke({**fixed, **body}) if isinstance(body, Mapping) else general(message))


async def _call(
    model: CallModel, fields: Sequence[ContextField], names: Sequence[str], arguments: dict[str, Any]
) -> Any:
    for each in fields:
        arguments = ContextField.use(each, **arguments)
    if model.serializer is not None:
        arguments.update(model.serializer(arguments))
    result = await model.call(**{name: arguments[name] for name in names if name in arguments})
    return result if model.serializer is None else model.serializer.response(result)
