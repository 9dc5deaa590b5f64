"""How subscribers and publishers are declared, on a broker or a router."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

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
from faststream_outbox.engine.giving_up import OnDead
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.publisher.usecase import OutboxPublisher, create_publisher
from faststream_outbox.retry import RetryDelayProto, RetryStrategyProto
from faststream_outbox.storage.ordering import HeadLease, Ordering
from faststream_outbox.subscriber.factory import create_subscriber
from faststream_outbox.subscriber.usecase import OutboxSubscriber


class OutboxRegistrator(Registrator[OutboxDelivery, OutboxBrokerConfig]):
    """What a broker and a router have in common."""

    def subscriber(  # type: ignore[override] # FastStream's base takes a subscriber ready made
        self,
        queues: str | Sequence[str],
        *,
        max_workers: int = 1,
        fetch_batch_size: int | None = None,
        # Wake-ups come by NOTIFY; these bound how long a lost one goes unnoticed.
        min_fetch_interval: float = 1.0,
        max_fetch_interval: float = 10.0,
        lease_ttl_seconds: float = 60.0,
        max_deliveries: int | None = None,
        # A message that failed for good must not stop those behind it unless somebody has decided so.
        on_dead: OnDead = "skip",
        retry_strategy: RetryStrategyProto | RetryDelayProto | None = None,
        ack_policy: AckPolicy = EMPTY,
        # Outcomes are written whenever the settler is free, so these bound a statement, not a wait.
        terminal_batch_size: int = 500,
        terminal_flush_interval_ms: float = 0.0,
        retry_batch_size: int = 100,
        # A row that is to wait for a second or more does not mind a tenth.
        retry_flush_interval_ms: float = 100.0,
        batch: bool = False,
        max_records: int | None = None,
        # Rows gather while the handler runs, so that busy subscribers have large batches and idle ones do not wait.
        max_wait_ms: float = 0.0,
        # Nothing to set up, and nobody is faster.
        ordering: Ordering = HeadLease(),  # noqa: B008 - a value that nobody changes
        propagate_inbound_headers: bool = False,
        # A broker that is up confirms in milliseconds, and a cluster that elects a leader within some seconds.
        publish_timeout: float | None = 30.0,
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
        """Subscribe a handler to one queue, or to several, each of which gets its share.

        Args:
            queues: A queue's name, or several.
            max_workers: How many messages, or batches of them, are handled side by side.
            fetch_batch_size: How many rows are claimed at once, at most: 250, or a batch of `max_records`.
            min_fetch_interval: Seconds between looks at an idle queue at first; they grow from look to look.
            max_fetch_interval: Seconds between looks at an idle queue at most.
            lease_ttl_seconds: After how long others may take a row whose holder died. Leases of running rows renew
                themselves, so it need not be longer than a handler runs.
            max_deliveries: After how many claims a row is dead without being handled again.
            on_dead: What becomes of a message with a key that failed for good: "skip" moves it to the dead-letter
                table, and its key goes on; "park" keeps it at the head of its key, which waits for an operator.
            retry_strategy: When a failed message is tried again; `ExponentialRetry` with ten attempts by default.
            ack_policy: What becomes of a message whose handler gave no verdict; retried on errors by default.
            terminal_batch_size: How many finished rows are settled by one statement at most.
            terminal_flush_interval_ms: How long a finished row may wait for others to share its statement.
            retry_batch_size: How many failed rows are rescheduled by one statement at most.
            retry_flush_interval_ms: How long a failed row may wait for others to share its statement.
            batch: Whether the handler takes a list of messages.
            max_records: How many messages that list has at most; 500 by default.
            max_wait_ms: For how long a message may wait for others to share its list, at most.
            ordering: How processes share messages with a key: `HeadLease()`, `AdvisoryLocks()` or `HashShards()`.
                With each of them those of one key are handled in their order, one at a time.
            propagate_inbound_headers: Whether what the handler returns is published with the message's headers.
            publish_timeout: How many seconds a publisher of another broker, such as Kafka, may take; then the attempt
                has failed. None leaves it to that broker's client.
            middlewares: Middlewares of this subscriber only, inside those of the broker and its routers.
            dependencies: Dependencies of every handler of this subscriber.
            parser: A function that makes a message of a row.
            decoder: A function that makes a body of a message.
            codec: Encodes and decodes bodies, in place of a decoder.
            filter: Which messages the handlers take, where they have no filter of their own.
            no_reply: Whether `reply_to` is ignored.
            persistent: Whether the broker keeps the subscriber alive.
            title: The channel's name in the AsyncAPI document.
            description: Its description; the handler's docstring by default.
            include_in_schema: Whether it appears there.

        Example:
            @broker.subscriber("orders", max_workers=4)
            async def handle(order_id: int) -> None: ...

        """
        subscriber = create_subscriber(
            queues=queues,
            max_workers=max_workers,
            fetch_batch_size=fetch_batch_size,
            min_fetch_interval=min_fetch_interval,
            max_fetch_interval=max_fetch_interval,
            lease_ttl_seconds=lease_ttl_seconds,
            max_deliveries=max_deliveries,
            on_dead=on_dead,
            retry_strategy=retry_strategy,
            ack_policy=ack_policy,
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

    def publisher(  # type: ignore[override] # FastStream's base takes a publisher ready made
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
        """Declare a publisher of one queue: to call, or to put on a handler.

        Args:
            queue: The queue's name.
            headers: Headers of every message; those of a single one win.
            reply_to: The queue where answers are expected.
            persistent: Whether the broker keeps the publisher alive.
            title: The channel's name in the AsyncAPI document.
            description: Its description.
            schema: The type of its messages, where no handler tells it.
            include_in_schema: Whether it appears there.

        """
        publisher = create_publisher(
            queue=queue,
            headers=headers,
            reply_to=reply_to,
            config=cast("OutboxBrokerConfig", self.config),
            title=title,
            description=description,
            schema=schema,
            include_in_schema=include_in_schema,
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(  # type: ignore[override] # only routers of this kind
        self,
        router: "OutboxRegistrator",
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Take over a router's subscribers and publishers, their queues prefixed."""
        if not isinstance(router, OutboxRegistrator):
            raise TypeError(f"An OutboxBroker includes an OutboxRouter, not {type(router).__name__}.")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
