"""What a handler returns, on its way into the table: with the settling of the message that it answers."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NoReturn

from faststream.response import PublishCommand, PublishType

from faststream_outbox._faststream import HandlerCallWrapper, PublisherMiddleware, PublisherProto, PublisherUsecase
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.message import OutboxMessage
from faststream_outbox.response import OutboxPublishCommand


def address_answer(cmd: OutboxPublishCommand, config: OutboxBrokerConfig) -> None:
    """Find out where an answer without a session is to be written.

    With the settling of the message at hand, if that is a message of the same broker. Otherwise the message came from
    elsewhere, and nothing of ours is open: then in a transaction of its own.
    """
    if cmd.session is not None:
        return
    message = config.context.get_local("message")
    broker = config.context.get_local("broker")
    ours = isinstance(message, OutboxMessage) and broker is config.extra_context.get("broker")
    cmd.answers = message.deliveries[0] if ours else None  # of a batch it does not matter which
    cmd.alone = not ours


class _AnswerPublisher(PublisherProto):
    """Publishes in the flow of a subscriber only."""

    __slots__ = ("_config",)

    def __init__(self, config: OutboxBrokerConfig) -> None:
        self._config = config

    async def _send(self, cmd: OutboxPublishCommand, middlewares: Iterable[PublisherMiddleware]) -> None:
        address_answer(cmd, self._config)
        call: Any = self._config.producer.publish
        for middleware in middlewares:
            call = partial(middleware, call)
        await call(cmd)

    async def publish(self, message: Any, /, *, correlation_id: str | None = None) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} publishes what handlers return, nothing else.")

    async def request(self, message: Any, /, *, correlation_id: str | None = None) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} publishes what handlers return, nothing else.")


class ReplyPublisher(_AnswerPublisher):
    """Publishes to the `reply_to` of the message at hand."""

    __slots__ = ("_reply_to",)

    def __init__(self, config: OutboxBrokerConfig, reply_to: str) -> None:
        super().__init__(config)
        self._reply_to = reply_to

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        reply = OutboxPublishCommand.from_cmd(cmd)
        reply.destination = self._reply_to
        reply.publish_type = PublishType.REPLY
        await self._send(reply, _extra_middlewares)


class ResponsePublisher(_AnswerPublisher):
    """Publishes an `OutboxResponse` to the queue that it names, besides what the handler's publishers do with it."""

    __slots__ = ("_handler",)

    def __init__(self, config: OutboxBrokerConfig, handler: HandlerCallWrapper[..., Any]) -> None:
        super().__init__(config)
        self._handler = handler

    def serves(self, config: OutboxBrokerConfig) -> bool:
        """Whether it publishes for the broker, or the router, with this configuration."""
        return self._config is config

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        context = self._config.context
        # A handler may be that of several brokers, each of which has one of these.
        if not isinstance(cmd, OutboxPublishCommand):
            return
        if getattr(context.get_local("handler_"), "_outer_config", None) is not self._config:
            return
        if cmd.queue:
            await self._send(cmd, _extra_middlewares)
        elif not self._published_by_others and not getattr(context.get_local("message"), "reply_to", ""):
            message = "A handler returned an OutboxResponse without a queue, so it was not published: give it a queue."
            self._config.publishing_monitor.report("response_dropped", message)

    @property
    def _published_by_others(self) -> bool:
        return any(isinstance(each, PublisherUsecase) for each in self._handler._publishers)  # noqa: SLF001 - as FastStream does
