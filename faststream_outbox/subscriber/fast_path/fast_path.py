"""The way of a message to its handler where nobody stands in between: as FastStream's, prepared once per subscriber."""

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
from faststream_outbox.subscriber.fast_path.arguments import prepare

_UNSET: Final = object()
# Under these nothing is said of a message before its handler has ended.
_POLICIES: Final = (AckPolicy.REJECT_ON_ERROR, AckPolicy.NACK_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL)


def is_straight(calls: Sequence[HandlerItem[Any]], policy: AckPolicy) -> bool:
    """Tell whether there is one handler, which takes all messages as they are."""
    return (
        len(calls) == 1
        and calls[0].filter is default_filter
        and calls[0].parser is OutboxParser.parse_message
        and policy in _POLICIES
    )


class FastPath:
    """Runs messages through the one handler of a subscriber that has no middlewares.

    What FastStream does for each message is done here for all of them, where it is the same for all: stacks, scopes and
    middlewares that would find nothing to do. What a handler raises is left to FastStream's own middlewares.
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
        self._invoke = prepare(call, config.fd_config)
        # What everything that runs in a worker may see; a worker is a task of its own, so nobody else does.
        self._around = {"handler_": subscriber, "logger": config.logger.logger.logger, **config.extra_context}
        self._logs = config.logger.logger.logger is not None
        self._log_errors = CriticalLogMiddleware(config.logger)
        self._acknowledge = AcknowledgementMiddleware(config.logger, policy, OutboxParser.parse_message)
        # Of these, ours look for an `OutboxResponse`; all others publish whatever is returned.
        self._publishers = call.handler._publishers  # noqa: SLF001 - as FastStream does
        self._ours = sum(isinstance(each, ResponsePublisher) for each in self._publishers)

    @property
    def is_open(self) -> bool:
        """Whether nobody has come in between: a middleware, or a test that looks at what the handler is given."""
        return not (self._handler.is_test or self._config.broker_middlewares)

    async def process(self, delivery: OutboxDelivery) -> None:
        """Run one message, raising what FastStream would raise."""
        try:
            message = open_message(delivery)
        except ValueError:
            await self._subscriber.process_message(delivery)  # it cannot be read either, and tells of it
            return
        message.set_decoder(self._decoder)
        context, log_context = self._context, self._subscriber.get_log_context(message)
        self._look_around()
        log_token, token = context.set_local("log_context", log_context), context.set_local("message", message)
        try:
            await self._handle(message, log_context)
        except BaseException as error:
            if not await self._take_care_of(error, message):
                raise
        finally:
            context.reset_local("message", token)
            context.reset_local("log_context", log_token)

    def _look_around(self) -> None:
        get_local = self._context.get_local
        for name, value in self._around.items():
            if get_local(name, _UNSET) is not value:
                self._context.set_local(name, value)

    async def _handle(self, message: OutboxMessage, log_context: dict[str, str]) -> None:
        if self._logs:
            self._config.logger.log("Received", extra=log_context)
        result = await self._invoke(message)
        replies = message.reply_to and not self._no_reply
        if len(self._publishers) > self._ours or replies or isinstance(result, Response):
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

    async def _take_care_of(self, error: BaseException, message: OutboxMessage) -> bool:
        """Have FastStream log an error and decide over its message; tells whether that is all there is to do."""
        told = type(error), error, error.__traceback__
        if self._logs:
            await self._log_errors(message.raw_message, context=self._context).__aexit__(*told)
        if self._policy is AckPolicy.MANUAL:
            return False
        acknowledging = self._acknowledge(message.raw_message, context=self._context)
        acknowledging.message = message
        return bool(await acknowledging.__aexit__(*told))
