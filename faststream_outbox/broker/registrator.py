"""Declares subscribers and publishers, on a broker or a router."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar, cast

from fast_depends.dependencies import Dependant
from faststream.middlewares import AckPolicy

from faststream_outbox._faststream import (
    EMPTY,
    BrokerMiddleware,
    CodecProto,
    CustomCallable,
    Filter,
    Registrator,
    default_filter,
)
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.engine.options import DEFAULTS, SubscriberOptions
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.publisher.usecase import (
    OutboxPublisher,
    OutboxPublisherConfig,
    OutboxPublisherSpecification,
    OutboxPublisherSpecificationConfig,
)
from faststream_outbox.retry import AnyRetryStrategy
from faststream_outbox.storage.ordering import Ordering
from faststream_outbox.storage.outcomes import OnDead
from faststream_outbox.subscriber.factory import create_subscriber, warn_of_contradictions
from faststream_outbox.subscriber.usecase import OutboxSubscriber

P = ParamSpec("P")
R = TypeVar("R")

# Options of the original package that have another name here.
_RENAMED: Final = {"terminal_flush_batch_size": "terminal_batch_size", "title_": "title", "description_": "description"}


def name_renamed_options(method: Callable[P, R]) -> Callable[P, R]:
    """Raise `TypeError` for an option by its name in the original package, with its name here."""

    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        for old in _RENAMED.keys() & options:
            raise TypeError(f"subscriber(…) has no option {old!r}: it is named {_RENAMED[old]!r}.")
        return method(*args, **options)

    return call


class OutboxRegistrator(Registrator[OutboxDelivery, OutboxBrokerConfig]):
    """The decorators that a broker and a router share."""

    @name_renamed_options
    def subscriber(  # type: ignore[override] # FastStream's base takes a finished subscriber
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
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        filter: Filter[Any] = default_filter,  # noqa: A002 - FastStream's name
        no_reply: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> OutboxSubscriber:
        """Subscribe a handler to one queue, or to several, which then share its workers evenly.

        The defaults, and the reason for each, are in `faststream_outbox.engine.options.SubscriberOptions`.

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
            dependencies: Dependencies of every handler of this subscriber.
            parser: A function that makes a message from a row.
            decoder: A function that makes a body from a message.
            codec: Encodes and decodes bodies, in place of a decoder.
            filter: Which messages the handlers take if they have no filter of their own.
            no_reply: Whether `reply_to` is ignored.
            persistent: Whether the broker keeps the subscriber alive.
            title: The name of the channel in the AsyncAPI document.
            description: Its description; by default the docstring of the handler.
            include_in_schema: Whether the channel appears in that document.

        Example:
            @broker.subscriber("orders", max_workers=4)
            async def handle(order_id: int) -> None: ...

        """
        subscriber = create_subscriber(
            queues=queues,
            options=SubscriberOptions(
                max_workers=max_workers,
                fetch_batch_size=fetch_batch_size,
                min_fetch_interval=min_fetch_interval,
                max_fetch_interval=max_fetch_interval,
                lease_ttl_seconds=lease_ttl_seconds,
                max_deliveries=max_deliveries,
                on_dead=on_dead,
                retry_strategy=retry_strategy,
                terminal_batch_size=terminal_batch_size,
                terminal_flush_interval_ms=terminal_flush_interval_ms,
                retry_batch_size=retry_batch_size,
                retry_flush_interval_ms=retry_flush_interval_ms,
                batch=batch,
                max_records=max_records,
                max_wait_ms=max_wait_ms,
                ordering=ordering,
                propagate_inbound_headers=propagate_inbound_headers,
                publish_timeout=publish_timeout,
            ),
            ack_policy=ack_policy,
            middlewares=middlewares,
            filter=filter,
            no_reply=no_reply,
            config=cast("OutboxBrokerConfig", self.config),
            title=title,
            description=description,
            include_in_schema=include_in_schema,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override] # FastStream's base takes a finished publisher
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
        """Declare a publisher of one queue, to call or to decorate a handler with.

        Args:
            queue: The name of the queue.
            headers: Headers of every message; a header given with a single message replaces them.
            reply_to: The queue where answers are expected.
            persistent: Whether the broker keeps the publisher alive.
            title: The name of the channel in the AsyncAPI document.
            description: Its description.
            schema: The type of its messages, if no handler's annotation gives it.
            include_in_schema: Whether the channel appears in that document.

        Example:
            @broker.subscriber("orders")
            @broker.publisher("invoices")
            async def bill(order_id: int) -> Invoice: ...

        """
        config = cast("OutboxBrokerConfig", self.config)
        specification = OutboxPublisherSpecificationConfig(
            queue=queue, title_=title, description_=description, schema_=schema, include_in_schema=include_in_schema
        )
        publisher = OutboxPublisher(
            OutboxPublisherConfig(queue=queue, headers=headers, reply_to=reply_to, _outer_config=config),
            OutboxPublisherSpecification(config, specification),
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(  # type: ignore[override] # takes routers of this kind only
        self,
        router: "OutboxRegistrator",
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Add the subscribers and publishers of a router.

        Args:
            router: An `OutboxRouter`.
            prefix: Put before the names of its queues.
            dependencies: Dependencies of every handler of the router.
            middlewares: Middlewares of every handler and publisher of the router.
            include_in_schema: Whether its queues appear in the AsyncAPI document; by default the router says it.

        """
        if not isinstance(router, OutboxRegistrator):
            raise TypeError(f"An OutboxBroker includes an OutboxRouter, not {type(router).__name__}.")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
        for subscriber in cast("list[OutboxSubscriber]", router.subscribers):
            warn_of_contradictions(subscriber.config)
