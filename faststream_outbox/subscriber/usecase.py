"""A subscriber as FastStream knows it: connects registration, start, stop and processing to a pipeline."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast, overload

from faststream.exceptions import StopConsume
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy

from faststream_outbox._faststream import (
    BrokerMiddleware,
    CallsCollection,
    Filter,
    HandlerCallWrapper,
    HandlerItem,
    PublisherProto,
    SubscriberSpecification,
    SubscriberUsecase,
    default_filter,
    process_msg,
)
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.engine.pull import Puller
from faststream_outbox.message import OutboxDelivery, OutboxMessage
from faststream_outbox.parser import OutboxBatchParser, OutboxParser
from faststream_outbox.publisher.answers import ReplyPublisher, ResponsePublisher
from faststream_outbox.publisher.foreign import ForeignPublishing, foreign_publishers, publishes_to_other_outbox
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import OutboxRow, Retry, Settlement
from faststream_outbox.storage.checks import check_name
from faststream_outbox.subscriber.call import Call
from faststream_outbox.subscriber.config import OutboxSubscriberConfig
from faststream_outbox.subscriber.fast_path import FastPath, has_fast_path
from faststream_outbox.subscriber.judge import Judge
from faststream_outbox.subscriber.middlewares import (
    PropagateHeaders,
    PublishToForeignBroker,
    WatchHandler,
    as_broker_middleware,
)
from faststream_outbox.subscriber.signatures import asks_for_session, check_handler, is_asynchronous
from faststream_outbox.subscriber.specification import OutboxSubscriberSpecification

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

# Identifies the call of a handler that the current code runs in; tasks that a handler starts inherit it.
_CALL_ID: ContextVar[object] = ContextVar("faststream_outbox_call", default=None)


class OutboxSubscriber(SubscriberUsecase[OutboxDelivery]):
    """Handles the messages of one or more queues; made by `broker.subscriber(…)`."""

    _outer_config: OutboxBrokerConfig

    def __init__(
        self,
        config: OutboxSubscriberConfig,
        specification: OutboxSubscriberSpecification,
        calls: CallsCollection[OutboxDelivery],
    ) -> None:
        config.parser = OutboxBatchParser.parse_batch if config.options.batch else OutboxParser.parse_message
        config.decoder = OutboxBatchParser.decode_batch if config.options.batch else OutboxParser.decode_message
        super().__init__(config, cast("SubscriberSpecification", specification), calls)
        self.config = config
        self._own_middlewares = [as_broker_middleware(each) for each in config.middlewares]
        if config.options.propagate_inbound_headers:
            self._own_middlewares.append(PropagateHeaders)
        # Next to the producer, so that they get a command after all other middlewares.
        self._last_middlewares: list[BrokerMiddleware[Any]] = []
        self._fast_path: FastPath | None = None
        self._pipeline: Pipeline | None = None
        self._puller: Puller | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._running_calls: set[object] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._exited = False

    @property
    def queues(self) -> list[str]:
        """The queues, prefixes included."""
        return [f"{self._outer_config.prefix}{queue}" for queue in self.config.queues]

    @property
    def alive(self) -> bool:
        """Whether every loop is running and has claimed lately; a subscriber that was stopped counts as alive.

        Not one that a handler stopped by `SystemExit` where there is no application to end.
        """
        return not self._exited and (not self.running or self._pipeline is None or self._pipeline.alive)

    @property
    def _broker_middlewares(self) -> Sequence[BrokerMiddleware[Any]]:
        return [*self._outer_config.broker_middlewares, *self._own_middlewares, *self._last_middlewares]

    @property
    def handlers(self) -> list[HandlerCallWrapper[..., Any]]:
        """The handlers, each with its publishers."""
        return [call.handler for call in self.calls]

    @property
    def shares_transactions(self) -> bool:
        """Whether one of the handlers asks for a session."""
        return any(asks_for_session(call, self._outer_config.broker_dependencies) for call in self.calls)

    def _decodes_itself(self, call: HandlerItem[Any]) -> bool:
        """Return whether our own decoder makes the body: no custom decoder or codec is given."""
        outer, options = self._outer_config, self._call_options
        return not any((outer.broker_decoder, outer.broker_codec, options.decoder, options.codec, call.item_decoder))

    @overload
    def __call__(
        self, func: Callable[Parameters, Returned], *, filter: Filter[Any] = default_filter, **options: Any
    ) -> HandlerCallWrapper[Parameters, Returned]: ...

    @overload
    def __call__(
        self, func: None = None, *, filter: Filter[Any] = default_filter, **options: Any
    ) -> Callable[[Callable[Parameters, Returned]], HandlerCallWrapper[Parameters, Returned]]: ...

    def __call__(self, func: Any = None, *, filter: Filter[Any] = default_filter, **options: Any) -> Any:  # noqa: A002 - FastStream's name
        """Add a handler; several handlers need a filter each."""
        chosen = self.config.filter if filter is default_filter else filter
        if func is None:
            return lambda function: self(function, filter=chosen, **options)
        handler: HandlerCallWrapper[..., Any] = super().__call__(func, filter=chosen, **options)
        publishers = handler._publishers  # noqa: SLF001 - as FastStream does
        if not any(isinstance(each, ResponsePublisher) and each.serves(self._outer_config) for each in publishers):
            publishers.append(ResponsePublisher(self._outer_config, handler))
        return handler

    def _build_fastdepends_model(self) -> None:
        # A subscriber of a router that was included later gets the policy of its broker only now.
        self.ack_policy = self.config.ack_policy
        self._SubscriberUsecase__auto_ack_disabled = self.config.auto_ack_disabled
        super()._build_fastdepends_model()
        for call in self.calls:
            takes_list = self.config.options.batch and self._decodes_itself(call)
            check_handler(call, self._outer_config.broker_dependencies, takes_list=takes_list)
        if self.shares_transactions and WatchHandler not in self._own_middlewares:
            self._own_middlewares.append(WatchHandler)
        # Only subscribers that publish to other brokers pay for this middleware.
        publishing = ForeignPublishing(foreign_publishers(self.handlers), self.config.options.publish_timeout)
        middleware = partial(PublishToForeignBroker, config=self._outer_config, publishing=publishing)
        needed = publishing.is_needed or publishes_to_other_outbox(self.handlers, self._outer_config)
        self._last_middlewares = [middleware] if needed else []

    async def start(self) -> None:
        """Begin to claim, if there is a handler."""
        self._exited = False
        for queue in self.queues:
            check_name("queue", queue)  # checked before, but without prefixes
        await super().start()
        if self._pipeline is not None and self._pipeline.orphaned:
            self._pipeline = None
        if self._pipeline is not None and self._pipeline.ending:
            await self.stop()  # wait for a stop that was begun
        if self.calls and self._pipeline is None:  # a broker may be started twice, by a test and by its application
            self._start_pipeline()
        self._post_start()

    @property
    def monitor(self) -> Monitor:
        """The log and the metrics of this subscriber."""
        return self._outer_config.monitor(self.specification.call_name, self.queues)

    @property
    def judge(self) -> Judge:
        """The judge that decides the outcome of each message."""
        renderer = self._outer_config.last_exception_renderer
        return Judge(self.ack_policy, self.config.options, renderer, self.monitor)

    def _start_pipeline(self) -> None:
        config, policy, batch = self._outer_config, self.ack_policy, self.config.options.batch
        judge, store, sharing = self.judge, config.store, self.shares_transactions
        simple = not (batch or self._own_middlewares or self._last_middlewares) and has_fast_path(self.calls, policy)
        self._fast_path = FastPath(self, self.calls[0], config, policy, no_reply=self._no_reply) if simple else None

        async def handle(rows: Sequence[OutboxRow]) -> list[Settlement]:
            call = Call(store, rows, shares_transaction=sharing)
            return await call.conclude(judge, await self._run(call))

        self._pipeline = Pipeline(
            store,
            self.queues,
            handle,
            options=self.config.options,
            # If each row is deleted in its handler's transaction, the deletion of the first row of a key ends the lease
            # that covers the others.
            rows_per_key=1 if sharing and not batch else None,
            monitor=self.monitor,
            announce=None if config.wakeup is None else config.wakeup.announce,
            # A handler that is a plain function cannot be cancelled: it runs on in its thread.
            interruptible=all(map(is_asynchronous, self.calls)),
            row_type=OutboxDelivery,
        )
        self._subscribe(self._pipeline.wake)
        self._pipeline.start()

    def _subscribe(self, wake: Callable[[], None]) -> None:
        if self._outer_config.wakeup is not None:
            self._outer_config.wakeup.start(listen=True)  # for a subscriber that is added to a running broker
            self._unsubscribe = self._outer_config.wakeup.subscribe(self.queues, wake)

    async def stop(self) -> None:
        """Claim no more, and let the rows in hand be handled and settled within `graceful_timeout`.

        If a handler stops its own subscriber, this returns at once and the stop goes on in another task.
        """
        if _CALL_ID.get() in self._running_calls:
            self._stop_soon(exit_app=False)
            return
        self._unsubscribe()
        if self._pipeline is not None:
            # `running` stays true until then: FastStream drops messages of a subscriber that is not running.
            await self._pipeline.stop(self._outer_config.graceful_timeout)
            self._pipeline = None
        if self._puller is not None:
            await self._puller.stop()
            self._puller = None
        await super().stop()

    async def process(self, call: Call) -> None:
        """Run a call's rows through middlewares, filters and handler."""
        if self._fast_path is not None and self._fast_path.is_open:
            await self._fast_path.process(call.deliveries[0])
            return
        message = call.deliveries if self.config.options.batch else call.deliveries[0]
        await self.process_message(cast("OutboxDelivery", message))

    async def _run(self, call: Call) -> BaseException | None:
        """Process a call's rows; return what the handler raised."""
        call_id = object()
        outer = _CALL_ID.set(call_id)
        self._running_calls.add(call_id)
        try:
            await self.process(call)
        except (StopConsume, SystemExit) as stop:
            self._stop_soon(exit_app=isinstance(stop, SystemExit))
            return stop
        except asyncio.CancelledError as cancelled:
            interrupting = self._pipeline is not None and self._pipeline.interrupting
            return await call.cancel(cancelled, interrupting=interrupting)
        except KeyboardInterrupt:
            await call.rollback()
            raise
        except BaseException as error:  # noqa: BLE001 - FastStream has logged it, the retry strategy decides
            return error
        finally:
            self._running_calls.discard(call_id)
            _CALL_ID.reset(outer)
        return None

    def _stop_soon(self, *, exit_app: bool) -> None:
        """Stop from inside a handler: in a task of its own, because stopping waits for the handler to end."""

        async def stop() -> None:
            await self.stop()
            if not exit_app:
                return
            if app := self._outer_config.context.get("app"):
                app.exit()
                return
            self._exited = True
            message = (
                "A handler raised SystemExit, and there is no FastStream application to end: only its subscriber is"
            )
            self.monitor.report(
                "subscriber_exited", f"{message} stopped, and ping() answers False.", level=logging.ERROR
            )

        if self._stopping is None or self._stopping.done():
            # In an empty context: in the handler's, `stop` would start another task and return.
            self._stopping = asyncio.create_task(stop(), context=Context())

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto[Any]]:
        return (ReplyPublisher(self._outer_config, message.reply_to),)

    async def get_one(self, *, timeout: float = 5.0) -> OutboxMessage | None:  # noqa: ASYNC109 - FastStream's signature
        """Take one message from a subscriber without handlers; return None when none came in time.

        The message is yours until you `ack()`, `nack()` or `reject()` it: its lease is renewed meanwhile, and stopping
        gives it back.

        Args:
            timeout: How many seconds to wait for a message.

        """
        puller = self._start_pulling()
        row = await puller.pull(timeout)
        return None if row is None else await self._parse(puller, OutboxDelivery.of(row))

    async def __aiter__(self) -> AsyncIterator[OutboxMessage]:
        """Take messages one after the other.

        The body of the loop is the handler: a message that it did not settle is acked when the next one is asked for
        (under `AckPolicy.MANUAL`: retried), and given back when the loop is left.
        """
        puller = self._start_pulling()
        while (row := await puller.pull()) is not None:
            delivery = OutboxDelivery.of(row)
            message = await self._parse(puller, delivery)
            try:
                yield message
                await (message.nack() if self.ack_policy is AckPolicy.MANUAL else message.ack())
            finally:
                if delivery.verdict is None:  # it has not failed, so no attempt is counted
                    await puller.settle(delivery.lease, Retry(0.0, delivery.attempts_count))

    def _start_pulling(self) -> Puller:
        if self.calls:
            raise AssertionError("You can't take messages one by one from a subscriber that has handlers.")
        if self._puller is None:
            config = self._outer_config
            self._puller = Puller(
                config.store,
                self.queues,
                options=self.config.options,
                monitor=self.monitor,
                announce=None if config.wakeup is None else config.wakeup.announce,
                row_type=OutboxDelivery,
            )
            self._subscribe(self._puller.wake)
        return self._puller

    async def _parse(self, puller: Puller, delivery: OutboxDelivery) -> OutboxMessage:
        judge = self.judge

        async def settle(decided: OutboxDelivery) -> None:
            await puller.settle(decided.lease, judge.outcome(decided, None))

        delivery.settle = settle
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        raw: Any = (delivery,) if self.config.options.batch else delivery
        try:
            message = await process_msg(
                msg=raw,
                middlewares=(each(raw, context=context) for each in self._broker_middlewares),
                parser=parser,
                decoder=decoder,
            )
        except Exception as error:
            await puller.settle(delivery.lease, judge.outcome(delivery, error))
            raise
        assert isinstance(message, OutboxMessage)  # noqa: S101 - a custom parser builds on ours
        return message

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return the fields that the access log adds to a record."""
        raw = None if message is None else message.raw_message
        queue = ",".join(self.queues) if raw is None else (raw[0] if isinstance(raw, tuple) else raw).queue
        return {"queue": queue, "message_id": getattr(message, "message_id", "")}
