"""A router, and routes: handlers that are declared in a list instead of by a decorator."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from fast_depends.dependencies import Dependant
from faststream.middlewares import AckPolicy

from faststream_outbox._faststream import (
    EMPTY,
    ArgsContainer,
    BrokerMiddleware,
    BrokerRouter,
    CodecProto,
    CustomCallable,
    SubscriberRoute,
)
from faststream_outbox.broker.registrator import OutboxRegistrator
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.message import OutboxDelivery


class OutboxPublisher(ArgsContainer):
    """The arguments of `publisher(…)`, for an `OutboxRoute`.

    Args:
        queue: The name of the queue.
        headers: Headers of every message.
        options: The other arguments of `publisher(…)`.

    """

    def __init__(self, queue: str, *, headers: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(queue, headers=headers, **options)


class OutboxRoute(SubscriberRoute):
    """A handler and the arguments of `subscriber(…)`, for `OutboxRouter(handlers=[…])`.

    Args:
        call: The handler.
        queues: The name of a queue, or a list of names.
        publishers: Where the handler's answers go.
        options: The other arguments of `subscriber(…)`.

    Example:
        router = OutboxRouter(handlers=[OutboxRoute(handle, "orders", max_workers=4)])

    """

    def __init__(
        self,
        call: Callable[..., Any] | Callable[..., Awaitable[Any]],
        queues: str | Sequence[str],
        *,
        publishers: Iterable[OutboxPublisher] = (),
        **options: Any,
    ) -> None:
        super().__init__(call, queues, publishers=publishers, **options)


class OutboxRouter(OutboxRegistrator, BrokerRouter[OutboxDelivery, OutboxBrokerConfig]):
    """A group of subscribers and publishers, for a broker or another router to include.

    Example:
        router = OutboxRouter(prefix="billing.")

        @router.subscriber("orders")  # the queue "billing.orders"
        async def handle(order_id: int) -> None: ...

        broker.include_router(router)

    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[OutboxRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[OutboxRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        """Make a router without a broker.

        Args:
            prefix: Put before the name of every queue.
            handlers: Handlers with their arguments, in place of decorators.
            dependencies: Dependencies of every handler.
            middlewares: Middlewares of every handler and publisher; they run inside those of the broker.
            routers: Routers to include.
            parser: A function that makes a message from a row, for all subscribers.
            decoder: A function that makes a body from a message, for all subscribers.
            codec: Encodes and decodes bodies, in place of a decoder.
            ack_policy: What becomes of a message whose handler gave no verdict; by default what the broker says.
            include_in_schema: Whether the queues appear in the AsyncAPI document; by default each says it itself.

        """
        if not isinstance(prefix, str):
            raise TypeError(
                f"prefix is a text, not {type(prefix).__name__}. Name the handlers: OutboxRouter(handlers=[…])."
            )
        super().__init__(
            handlers=handlers,
            config=OutboxBrokerConfig(
                prefix=prefix,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                ack_policy=ack_policy,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
