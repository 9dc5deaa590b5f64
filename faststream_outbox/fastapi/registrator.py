"""Declares subscribers and publishers on a FastAPI router."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, ParamSpec, TypeVar, cast, get_args, get_type_hints

from fastapi import APIRouter, params
from fastapi.datastructures import Default
from fastapi.routing import APIRoute
from fastapi.types import IncEx
from fastapi.utils import generate_unique_id
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from faststream_outbox import annotations
from faststream_outbox._faststream import EMPTY, BrokerMiddleware, CodecProto, CustomCallable, Filter, default_filter
from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.broker.registrator import OutboxRegistrator, name_renamed_options
from faststream_outbox.engine.options import DEFAULTS
from faststream_outbox.fastapi._faststream import StreamRouter
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.publisher.usecase import OutboxPublisher
from faststream_outbox.retry import AnyRetryStrategy
from faststream_outbox.storage.ordering import Ordering
from faststream_outbox.storage.outcomes import OnDead
from faststream_outbox.subscriber.usecase import OutboxSubscriber

P = ParamSpec("P")
R = TypeVar("R")


def passes_arguments_to(target: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Replace a method, of which only the signature counts, by a call of `target` with the same arguments.

    A signature of thirty options is then written once, for the IDE, and not again for the call.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return cast("R", target(*bound.args, **bound.kwargs))

        return call

    return decorate


class OutboxStreamRegistrator(StreamRouter[OutboxDelivery]):
    """The decorators of a FastAPI router, with the options of `OutboxBroker`'s own."""

    broker_class = OutboxBroker
    broker: OutboxBroker

    def __init__(self, *args: Any, routers: Iterable[OutboxRegistrator], **options: Any) -> None:
        super().__init__(*args, **options)
        for router in routers:
            self.include_router(router)

    def _subscriber_compatibility_wrapper(  # type: ignore[override] # FastStream names the other options one by one
        self, dependencies: Iterable[params.Depends] = (), **options: Any
    ) -> Callable[..., Any]:
        dependencies = list(dependencies)
        wrap: Callable[..., Any] = super()._subscriber_compatibility_wrapper(dependencies, **options)
        classes = self.broker.config.broker_config.default_driver_annotations

        def check_and_wrap(handler: Callable[..., Any]) -> Callable[..., Any]:
            for function in (handler, *(each.dependency for each in dependencies)):
                if function is not None:
                    _check_annotations(function, classes)
            return wrap(handler)  # type: ignore[no-any-return] # FastStream's

        return check_and_wrap

    @name_renamed_options
    @passes_arguments_to(StreamRouter.subscriber)
    def subscriber(  # type: ignore[empty-body, override] # the queues are named, as on the broker
        self,
        queues: str | Sequence[str],
        *,
        max_workers: int = DEFAULTS.max_workers,
        fetch_batch_size: int | None = DEFAULTS.fetch_batch_size,
        min_fetch_interval: float = DEFAULTS.min_fetch_interval,
        max_fetch_interval: float = DEFAULTS.max_fetch_interval,
        lease_ttl_seconds: float = DEFAULTS.lease_ttl_seconds,
        max_deliveries: int | None = DEFAULTS.max_deliveries,
        on_dead: OnDead = DEFAULTS.on_dead,
        retry_strategy: AnyRetryStrategy | None = DEFAULTS.retry_strategy,
        ack_policy: AckPolicy = EMPTY,
        terminal_batch_size: int = DEFAULTS.terminal_batch_size,
        terminal_flush_interval_ms: float = DEFAULTS.terminal_flush_interval_ms,
        retry_batch_size: int = DEFAULTS.retry_batch_size,
        retry_flush_interval_ms: float = DEFAULTS.retry_flush_interval_ms,
        batch: bool = DEFAULTS.batch,
        max_records: int | None = DEFAULTS.max_records,
        max_wait_ms: float = DEFAULTS.max_wait_ms,
        ordering: Ordering = DEFAULTS.ordering,
        propagate_inbound_headers: bool = DEFAULTS.propagate_inbound_headers,
        publish_timeout: float | None = DEFAULTS.publish_timeout,
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        dependencies: Sequence[params.Depends] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        filter: Filter[Any] = default_filter,  # noqa: A002 - FastStream's name
        no_reply: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        # FastAPI's own: how it turns what the handler returns into the body to publish
        response_model: Any = Default(None),
        response_model_include: IncEx | None = None,
        response_model_exclude: IncEx | None = None,
        response_model_by_alias: bool = True,
        response_model_exclude_unset: bool = False,
        response_model_exclude_defaults: bool = False,
        response_model_exclude_none: bool = False,
    ) -> OutboxSubscriber:
        """Subscribe a handler, whose parameters FastAPI may inject, to one queue or to several.

        The `response_model` and its options mean what they mean for a path operation of FastAPI.

        Args:
            queues: The name of a queue, or a list of names.
            max_workers: How many messages, or batches, are handled side by side; 1 by default.
            fetch_batch_size: How many rows one statement claims at most; by default 250, or `max_records` if larger.
            min_fetch_interval: Seconds until an idle queue is looked at again at first (1 by default); the interval
                doubles from look to look.
            max_fetch_interval: The longest such interval in seconds; 10 by default. Notifications usually wake the
                subscriber earlier.
            lease_ttl_seconds: After how many seconds others may claim the rows of a process that stalls; 60 by default.
                Leases are renewed while a handler runs, so a handler may take longer than this.
            max_deliveries: After how many deliveries a row is dead without being handled again; by default no limit.
            on_dead: What becomes of a message with a key that failed for good: "skip" (the default) moves it to the
                dead-letter table and its key goes on; "park" keeps it at the head of its key, which waits for an
                operator.
            retry_strategy: When a failed message is tried again; by default `ExponentialRetry` with ten attempts.
            ack_policy: What becomes of a message whose handler gave no verdict; by default an error is retried.
            terminal_batch_size: How many finished rows one statement settles at most; 500 by default.
            terminal_flush_interval_ms: How long a finished row may wait to share its statement; 0 by default.
            retry_batch_size: How many failed rows one statement reschedules at most; 100 by default.
            retry_flush_interval_ms: How long a failed row may wait to share its statement; 100 by default.
            batch: Whether the handler takes a list of messages.
            max_records: How many messages that list has at most; 500 by default. Needs `batch=True`.
            max_wait_ms: How long a message may wait for others to share its list; 0 by default. Needs `batch=True`.
            ordering: How processes share messages with a key: `HeadLease()` (the default), `AdvisoryLocks()` or
                `HashShards()`. With each of them the messages of one key are handled in order, one at a time.
            propagate_inbound_headers: Whether what the handler returns is published with the message's headers.
            publish_timeout: How many seconds a publisher of another broker, such as Kafka, may take before the attempt
                fails; 30 by default. None leaves the limit to that broker's client.
            middlewares: Middlewares of this subscriber only; they run inside those of the broker and its routers.
            dependencies: FastAPI's dependencies of every handler of this subscriber.
            parser: A function that makes a message from a row.
            decoder: A function that makes a body from a message.
            codec: Encodes and decodes bodies, in place of a decoder.
            filter: Which messages the handlers take if they have no filter of their own.
            no_reply: Whether `reply_to` is ignored.
            persistent: Whether the broker keeps the subscriber alive.
            title: The name of the channel in the AsyncAPI document.
            description: Its description; by default the docstring of the handler.
            include_in_schema: Whether the channel appears in that document.
            response_model: The type to which FastAPI converts what the handler returns, before it is published.
            response_model_include: The only fields that are published.
            response_model_exclude: Fields that are not published.
            response_model_by_alias: Whether fields are published under their aliases.
            response_model_exclude_unset: Whether fields that were not set are left out.
            response_model_exclude_defaults: Whether fields that have their default are left out.
            response_model_exclude_none: Whether fields that are None are left out.

        """

    @passes_arguments_to(lambda router, queue, **options: router.broker.publisher(queue, **options))
    def publisher(  # type: ignore[empty-body, override] # FastStream's base takes nothing
        self,
        queue: str,
        *,
        headers: Mapping[str, Any] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> OutboxPublisher:
        """Declare a publisher of one queue, as `OutboxBroker.publisher` does.

        Args:
            queue: The name of the queue.
            headers: Headers of every message; a header given with a single message replaces them.
            reply_to: The queue where answers are expected.
            persistent: Whether the broker keeps the publisher alive.
            title: The name of the channel in the AsyncAPI document.
            description: Its description.
            schema: The type of its messages, if no handler's annotation gives it.
            include_in_schema: Whether the channel appears in that document.

        """

    def include_router(
        self,
        router: Any,
        *,
        prefix: str = "",
        tags: list[str | Enum] | None = None,
        dependencies: Sequence[params.Depends] | None = None,
        default_response_class: type[Response] = Default(JSONResponse),
        responses: dict[int | str, dict[str, Any]] | None = None,
        callbacks: list[BaseRoute] | None = None,
        deprecated: bool | None = None,
        include_in_schema: bool = True,
        generate_unique_id_function: Callable[[APIRoute], str] = Default(generate_unique_id),
    ) -> None:
        """Add the subscribers of a `faststream_outbox.OutboxRouter`, or the paths of a FastAPI `APIRouter`.

        `prefix` is put before the names of queues in the first case, and before paths in the second.
        """
        if isinstance(router, OutboxRegistrator):
            for subscriber in cast("list[OutboxSubscriber]", router.subscribers):
                own = _dependencies_of(subscriber)
                wrap = self._subscriber_compatibility_wrapper((*self.dependencies, *(dependencies or ()), *own))
                subscriber._call_decorators = (wrap, *subscriber._call_decorators)  # noqa: SLF001 - as FastStream does
            self.broker.include_router(router, prefix=prefix, include_in_schema=None if include_in_schema else False)
        elif isinstance(router, APIRouter) and not isinstance(router, StreamRouter):
            APIRouter.include_router(
                self,
                router,
                prefix=prefix,
                tags=tags,
                dependencies=dependencies,
                default_response_class=default_response_class,
                responses=responses,
                callbacks=callbacks,
                deprecated=deprecated,
                include_in_schema=include_in_schema,
                generate_unique_id_function=generate_unique_id_function,
            )
        else:
            raise TypeError(
                f"A FastAPI OutboxRouter includes routers of faststream_outbox and plain routers of FastAPI, not "
                f"{type(router).__name__}. Include that one into the application: app.include_router(router)."
            )


def _dependencies_of(subscriber: OutboxSubscriber) -> list[params.Depends]:
    """Return the dependencies of a plain router and its subscriber, which FastStream ignores under FastAPI."""
    found = [*subscriber._outer_config.broker_dependencies, *subscriber._call_options.dependencies]  # noqa: SLF001 - FastStream has no public name for them
    for dependency in found:
        if not isinstance(dependency, params.Depends):
            raise SetupError(
                f"The subscriber of {', '.join(subscriber.queues)} depends on {dependency}, which is FastStream's "
                "Depends. Under FastAPI use fastapi.Depends."
            )
    return cast("list[params.Depends]", found)


def _check_annotations(function: Callable[..., Any], classes: Mapping[Any, str]) -> None:
    """Raise `SetupError` if a handler, or one of its dependencies, asks for something in FastStream's way.

    Args:
        function: The handler or the dependency.
        classes: What the broker injects, each with the name of its annotation for FastStream.

    """
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except Exception:  # noqa: BLE001 - an annotation that cannot be resolved here; FastAPI will say so
        return
    for parameter in parameters:
        hint = hints.get(parameter.name)
        if name := _name_of(hint) or (parameter.default is inspect.Parameter.empty and _name_in(classes, hint)):
            called = getattr(function, "__name__", function)
            raise SetupError(
                f"FastAPI cannot inject {parameter.name!r} of {called}(): its annotation is not FastAPI's. "
                f"Use the one that is: from faststream_outbox.fastapi import {name}"
            )
        for mark in (parameter.default, *get_args(hint)[1:]):
            if isinstance(mark, params.Depends) and mark.dependency is not None:
                _check_annotations(mark.dependency, classes)


def _name_of(hint: Any) -> str | None:
    """Return the name that `faststream_outbox.annotations` has for an annotation; None if it is of another place."""
    names = (name for name in annotations.__all__ if name not in {"InboxSession", "NoCast"})
    return next((name for name in names if getattr(annotations, name) == hint), None)


def _name_in(classes: Mapping[Any, str], hint: Any) -> str | None:
    """Return the name of the annotation to use in place of a class that the broker injects; None for another class."""
    path = classes.get(hint) if isinstance(hint, type) else None
    return None if path is None else path.rpartition(".")[2]
