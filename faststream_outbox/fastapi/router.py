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
        router = OutboxRouter(engine, outbox_table=outbox_table, dlq_table=dlq_table)


        @router.post("/orders")
        async def place(
            order: Order, session: Annotated[AsyncSession, Depends(get_session)]
        ) -> None:
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
        control_table: Table | None = None,
        audit_table: Table | None = None,
        nodes_table: Table | None = None,
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
        """Make a router with a broker of its own; it starts and stops with the application.

        Args:
            engine: The engine that subscribers claim through; yours to dispose of. Without it the broker only
                publishes.
            outbox_table: The table of messages: `make_outbox_table(metadata)`.
            dlq_table: The table of dead letters: `make_dlq_table(metadata)`. Without one, messages that failed for
                good are deleted.
            shards_table: The table of shard leases, for `HashShards()`: `make_shards_table(metadata)`.
            control_table: The table of paused queues: `make_operations_tables(metadata).control`. Without one, queues
                cannot be paused.
            audit_table: The table of what operators did: `make_operations_tables(metadata).audit`. Without one, it is
                logged only.
            nodes_table: The table of running processes, for people: `make_operations_tables(metadata).nodes`.
            graceful_timeout: How many seconds `stop()` waits for running handlers; None waits without a limit.
            metrics_recorder: A function that is called with each metrics event and its tags.
            last_exception_renderer: A function that returns the text of an exception for the dead-letter table and for
                the broker's own log records, which then have no traceback.
            source: The name of this outbox in the ids of messages to other brokers; by default the name of the table.
            decoder: A function that makes a body from a message, for all subscribers.
            parser: A function that makes a message from a row, for all subscribers.
            codec: Encodes and decodes bodies, in place of a decoder.
            middlewares: Middlewares of every handler and every publish.
            routers: Routers to include.
            ack_policy: What becomes of a message whose handler gave no verdict; by default an error is retried.
            id_generator: A function that makes the correlation id of a message that is published without one; by
                default that message uses its row's id.
            serializer: Converts bodies to types and back: Pydantic's by default, where it is installed.
            context: FastStream's context, to share with another broker.
            specification: FastStream's AsyncAPI document, to share with others; by default one is made.
            specification_url: The address of the database in the AsyncAPI document; by default that of the engine,
                without user and password.
            specification_tags: The tags of the broker in that document.
            protocol: The protocol in that document; "postgresql" by default.
            protocol_version: The version of that protocol.
            description: The description of the broker in that document.
            security: The security scheme in that document.
            schema_url: The path of the page with that document; None serves none.
            logger: The logger for the broker's records; None logs nothing. By default one is made.
            log_level: The level at which FastStream logs each message.
            setup_state: Whether the router puts its broker into the state of the application.
            prefix: Put before every path, not before the names of queues.
            tags: FastAPI's tags of the paths.
            dependencies: FastAPI's dependencies of every path and every handler.
            default_response_class: The class of the paths' responses.
            responses: More responses of the paths, for the OpenAPI document.
            callbacks: OpenAPI callbacks of the paths.
            routes: Routes of Starlette; FastAPI advises against them.
            redirect_slashes: Whether a path with a slash too many or too few is redirected.
            default: The ASGI application for paths that nothing else matches.
            dependency_overrides_provider: What overrides dependencies, in tests; FastAPI sets it to the application.
            route_class: The class of the paths.
            on_startup: Functions to call when the application starts.
            on_shutdown: Functions to call when the application stops.
            lifespan: What runs around the broker: it is entered before the broker starts.
            deprecated: Whether the paths are marked as deprecated.
            include_in_schema: Whether the paths appear in the OpenAPI document.
            generate_unique_id_function: Makes the ids of the paths in that document.

        """  # the decorator calls the parent

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
