"""Gives a handler its arguments as FastDepends does, without the stack and the tasks that most handlers do not need."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from faststream.message import StreamMessage

from faststream_outbox._faststream import CallModel, ContextField, FastDependsConfig, HandlerItem
from faststream_outbox.context import OnTheLoop

Invoke = Callable[[StreamMessage[Any]], Awaitable[Any]]

# What FastStream passes on to the fields that look something up.
_CONTEXT: Final = "context__"
_A_BODY: Final = object()


def prepare(call: HandlerItem[Any], config: FastDependsConfig) -> Invoke:
    """Return what calls a handler with a message: where it asks for no dependencies, in a quick way."""
    model = call.dependant
    whole: Invoke = call.handler._wrapped_call  # type: ignore[assignment]  # noqa: SLF001 - set when a subscriber starts
    if not config.use_fastdepends or not isinstance(model, CallModel) or not _is_simple(model):
        return whole
    fields = [cast("ContextField", each) for each in model.custom_fields.values()]
    invoke = partial(_call, model, fields, (*model.keyword_args, *model.positional_args))
    fixed = {_CONTEXT: config.context}
    if len(model.params) > 1:
        return partial(_unpack, invoke, fixed, whole)
    return partial(_pass, invoke, fixed, _name_of_body(model))


def _is_simple(model: CallModel) -> bool:
    """Tell whether its arguments are a message's body, or parts of it, and what FastStream's context holds."""
    return (
        inspect.iscoroutinefunction(model.call)
        and not (model.dependencies or model.extra_dependencies or model.args_name or model.kwargs_name)
        and all(map(_is_looked_up, model.custom_fields.values()))
    )


def _is_looked_up(field: Any) -> bool:
    """Tell whether a field takes what is there; what makes something may take its time, and has its thread."""
    return type(field) in {ContextField, OnTheLoop} and field.initial is None


def _name_of_body(model: CallModel) -> str | None:
    """Ask FastDepends which parameter the body is for; there is none in a handler that looks everything up."""
    solving = model._solve(_A_BODY, cache_dependencies={})  # type: ignore[arg-type]  # noqa: SLF001 - it tells by doing
    _left, arguments = next(solving)
    solving.close()
    return next((name for name, value in arguments.items() if value is _A_BODY), None)


async def _pass(
    invoke: Callable[[dict[str, Any]], Awaitable[Any]],
    fixed: dict[str, Any],
    name: str | None,
    message: StreamMessage[Any],
) -> Any:
    body = await message.decode()
    return await invoke({**fixed} if name is None else {**fixed, name: body})


async def _unpack(
    invoke: Callable[[dict[str, Any]], Awaitable[Any]],
    fixed: dict[str, Any],
    whole: Invoke,
    message: StreamMessage[Any],
) -> Any:
    body = await message.decode()
    return await (invoke({**fixed, **body}) if isinstance(body, Mapping) else whole(message))


async def _call(
    model: CallModel, fields: Sequence[ContextField], names: Sequence[str], arguments: dict[str, Any]
) -> Any:
    for each in fields:
        arguments = ContextField.use(each, **arguments)
    if model.serializer is not None:
        arguments.update(model.serializer(arguments))
    result = await model.call(**{name: arguments[name] for name in names if name in arguments})
    return result if model.serializer is None else model.serializer.response(result)
