"""A FastAPI router that is also a broker: it starts and stops with the application."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from typing import Any
from weakref import WeakSet

from fast_depends.library.serializer import SerializerProto
from fastapi import FastAPI, params
from fastapi.datastructures import Default
from fastapi.routing import APIRoute
from fastapi.utils import generate_unique_id
from faststream import ContextRepo
from faststream.middlewares import AckPolicy
from faststream.security import BaseSecurity
from faststream.specification.base import SpecificationFactory
from faststream.specification.schema import Tag, TagDict
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Lifespan

from faststream_outbox._faststream import EMPTY, BrokerMiddleware, CodecProto, CustomCallable, IdGenerator, LoggerProto
from faststream_outbox.broker.registrator import OutboxRegistrator
from faststream_outbox.configs import LastExceptionRenderer
from faststream_outbox.fastapi.registrator import OutboxStreamRegistrator, passes_arguments_to
from faststream_outbox.metrics import MetricsRecorder


class OutboxRouter(OutboxStreamRegistrator):
    """The outbox as a part of a FastAPI application.

    `dependencies` and `tags` are FastAPI's; `specification_tags` are those of the AsyncAPI document. Everything else
    that `OutboxBroker` takes means what it means there.

    Example:
        router = OutboxRouter(engine, outbox_table=outbox_table)

        @router.post("/orders")
        async def place(order: Order, session: Annotated[AsyncSession, Depends(get_session)]) -> None:
            session.add(order)
            await router.broker.publish(order.id, queue="orders", session=session)

        @router.subscriber("orders")
        async def confirm(order_id: int) -> None: ...

        app = FastAPI()
        app.include_router(router)

    """

    @passes_arguments_to(OutboxStreamRegistrator.__init__)
    def __init__(
        self,
        engine: AsyncEngine | None = None,
        *,
        outbox_table: Table,
        dlq_table: Table | None = None,
        shards_table: Table | None = None,
        graceful_timeout: float | None = 15.0,
        metrics_recorder: MetricsRecorder | None = None,
        last_exception_renderer: LastExceptionRenderer | None = None,
        source: str | None = None,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[OutboxRegistrator] = (),
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator | None = None,
        serializer: SerializerProto | None = EMPTY,
        context: ContextRepo | None = None,
        # AsyncAPI
        specification: SpecificationFactory | None = None,
        specification_url: str | None = None,
        specification_tags: Iterable[Tag | TagDict] = (),
        protocol: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        security: BaseSecurity | None = None,
        schema_url: str | None = "/asyncapi",
        # Logging
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        # FastAPI
        setup_state: bool = True,
        prefix: str = "",
        tags: list[str | Enum] | None = None,
        dependencies: Sequence[params.Depends] | None = None,
        default_response_class: type[Response] = Default(JSONResponse),
        responses: dict[int | str, dict[str, Any]] | None = None,
        callbacks: list[BaseRoute] | None = None,
        routes: list[BaseRoute] | None = None,
        redirect_slashes: bool = True,
        default: ASGIApp | None = None,
        dependency_overrides_provider: Any | None = None,
        route_class: type[APIRoute] = APIRoute,
        on_startup: Sequence[Callable[[], Any]] | None = None,
        on_shutdown: Sequence[Callable[[], Any]] | None = None,
        lifespan: Lifespan[Any] | None = None,
        deprecated: bool | None = None,
        include_in_schema: bool = True,
        generate_unique_id_function: Callable[[APIRoute], str] = Default(generate_unique_id),
    ) -> None:
        pass  # the decorator calls the parent

    def _wrap_lifespan(self, lifespan: Lifespan[Any] | None = None) -> Lifespan[Any]:
        start_and_stop: Callable[[FastAPI], AbstractAsyncContextManager[Any]] = super()._wrap_lifespan(lifespan)
        documented = WeakSet[FastAPI]()

        @asynccontextmanager
        async def run(app: FastAPI) -> AsyncIterator[Any]:
            """Start and stop with an application, several times if it runs several times, as in tests."""
            docs = self.docs_router
            if app in documented:
                self.docs_router = None  # its routes are there already
            documented.add(app)
            try:
                async with start_and_stop(app) as state:
                    yield state
            finally:
                self.docs_router = docs
                self._lifespan_started = False
                if self.broker.running:  # a hook of the startup failed
                    await self.broker.stop()

        return run
