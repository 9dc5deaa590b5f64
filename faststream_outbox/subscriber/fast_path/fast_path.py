"""Calls the handler of a subscriber that has one handler and no middlewares, as FastStream would."""

from collections.abc import Sequence
from typing import Any, Final

from faststream.middlewares import AcknowledgementMiddleware, AckPolicy
from faststream.middlewares.logging import CriticalLogMiddleware
from faststream.response import Response, ensure_response

from faststream_outbox._faststream import HandlerItem, PublisherProto, default_filter
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.message import OutboxDelivery, OutboxMessage
from faststream_outbox.parser import OutboxParser, open_message
from faststream_outbox.publisher.answers import ReplyPublisher, ResponsePublisher
from faststream_outbox.subscriber.fast_path.arguments import make_invoke

_UNSET: Final = object()
# Under these policies a message gets its verdict after the handler has ended.
_POLICIES: Final = (AckPolicy.REJECT_ON_ERROR, AckPolicy.NACK_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL)


def has_fast_path(calls: Sequence[HandlerItem[Any]], policy: AckPolicy) -> bool:
    """Return whether the subscriber has one handler, which takes every message, with our parser."""
    return (
        len(calls) == 1
        and calls[0].filter is default_filter
        and calls[0].parser is OutboxParser.parse_message
        and policy in _POLICIES
    )


class FastPath:
    """Calls the only handler of a subscriber without middlewares.

    FastStream builds exit stacks, scopes and middlewares for every message; here what is the same for all messages is
    made once. FastStream's own middlewares log and judge what a handler raises.
    """

    def __init__(
        self, subscriber: Any, call: HandlerItem[Any], config: OutboxBrokerConfig, policy: AckPolicy, *, no_reply: bool
    ) -> None:
        self._subscriber = subscriber
        self._handler = call.handler
        self._decoder: Any = call.decoder
        self._config = config
        self._context = config.context
        self._policy = policy
        self._no_reply = no_reply
        self._invoke = make_invoke(call, config.fd_config)
        # FastStream's context for everything that runs in a worker; a worker is a task, with a context of its own.
        self._worker_context = {"handler_": subscriber, "logger": config.logger.logger.logger, **config.extra_context}
        self._logs = config.logger.logger.logger is not None
        self._log_errors = CriticalLogMiddleware(config.logger)
        self._acknowledge = AcknowledgementMiddleware(config.logger, policy, OutboxParser.parse_message)
        # A ResponsePublisher sends an `OutboxResponse` only; all other publishers send whatever the handler returns.
        self._publishers = call.handler._publishers  # noqa: SLF001 - as FastStream does
        self._response_publishers = sum(isinstance(each, ResponsePublisher) for each in self._publishers)

    @property
    def is_open(self) -> bool:
        """Return whether the handler can be called directly: no middleware is registered and no test is watching it."""
        return not (self._handler.is_test or self._config.broker_middlewares)

    async def process(self, delivery: OutboxDelivery) -> None:
        """Handle one message; raise what FastStream would raise."""
        try:
            message = open_message(delivery)
        except ValueError:
            await self._subscriber.process_message(delivery)  # FastStream cannot parse it either, and reports that
            return
        message.set_decoder(self._decoder)
        context, log_context = self._context, self._subscriber.get_log_context(message)
        self._set_worker_context()
        log_token, token = context.set_local("log_context", log_context), context.set_local("message", message)
        try:
            await self._handle(message, log_context)
        except BaseException as error:
            if not await self._judge_error(error, message):
                raise
        finally:
            context.reset_local("message", token)
            context.reset_local("log_context", log_token)

    def _set_worker_context(self) -> None:
        get_local = self._context.get_local
        for name, value in self._worker_context.items():
            if get_local(name, _UNSET) is not value:
                self._context.set_local(name, value)

    async def _handle(self, message: OutboxMessage, log_context: dict[str, str]) -> None:
        if self._logs:
            self._config.logger.log("Received", extra=log_context)
        result = await self._invoke(message)
        replies = message.reply_to and not self._no_reply
        if len(self._publishers) > self._response_publishers or replies or isinstance(result, Response):
            await self._answer(result, message, [ReplyPublisher(self._config, message.reply_to)] if replies else [])
        if self._logs:
            self._config.logger.log("Processed", extra=log_context)
        if self._policy is not AckPolicy.MANUAL:
            await message.ack()

    async def _answer(self, result: Any, message: OutboxMessage, replies: Sequence[PublisherProto[Any]]) -> None:
        response = ensure_response(result)
        response.correlation_id = response.correlation_id or message.correlation_id
        for publisher in (*replies, *self._publishers):
            await publisher._publish(response.as_publish_command(), _extra_middlewares=())  # noqa: SLF001 - as FastStream does

    async def _judge_error(self, error: BaseException, message: OutboxMessage) -> bool:
        """Call FastStream's middlewares that log an error and give a verdict; return whether they handled the error."""
        exc_info = type(error), error, error.__traceback__
        if self._logs:
            await self._log_errors(message.raw_message, context=self._context).__aexit__(*exc_info)
        if self._policy is AckPolicy.MANUAL:
            return False
        acknowledging = self._acknowledge(message.raw_message, context=self._context)
        acknowledging.message = message
        return bool(await acknowledging.__aexit__(*exc_info))
