"""Declares subscribers and publishers on a FastAPI router."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, ParamSpec, TypeVar, cast

from fastapi import APIRouter, params
from fastapi.datastructures import Default
from fastapi.routing import APIRoute
from fastapi.types import IncEx
from fastapi.utils import generate_unique_id
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from faststream_outbox._faststream import EMPTY, BrokerMiddleware, CodecProto, CustomCallable, Filter, default_filter
from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.broker.registrator import OutboxRegistrator
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

        Args:
            queues: The name of a queue, or a list of names.
            dependencies: FastAPI's dependencies of every handler of this subscriber.
            response_model: The type to which FastAPI converts what the handler returns, before it is published.

        The other parameters are those of `OutboxBroker.subscriber` and of a FastAPI path operation.

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
        """Declare a publisher of one queue, as `OutboxBroker.publisher` does."""

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
