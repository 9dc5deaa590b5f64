"""Publishes what a handler returns, by the statement that settles the message it answers."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NoReturn

from faststream.response import PublishCommand, PublishType

from faststream_outbox._faststream import HandlerCallWrapper, PublisherMiddleware, PublisherProto, PublisherUsecase
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.message import OutboxMessage
from faststream_outbox.response import OutboxPublishCommand


def choose_transaction(cmd: OutboxPublishCommand, config: OutboxBrokerConfig) -> None:
    """Set the transaction of an answer that has no session.

    The answer to a message of the same broker is inserted by the statement that settles that message. The answer to a
    message of another broker is inserted in its own transaction.
    """
    if cmd.session is not None:
        return
    message = config.context.get_local("message")
    broker = config.context.get_local("broker")
    ours = isinstance(message, OutboxMessage) and broker is config.extra_context.get("broker")
    cmd.answered = message.deliveries[0] if ours else None  # of a batch, any delivery will do
    cmd.own_transaction = not ours


class _AnswerPublisher(PublisherProto):
    """A publisher that only a subscriber uses, for what its handler returned."""

    __slots__ = ("_config",)

    def __init__(self, config: OutboxBrokerConfig) -> None:
        self._config = config

    async def _send(self, cmd: OutboxPublishCommand, middlewares: Iterable[PublisherMiddleware]) -> None:
        choose_transaction(cmd, self._config)
        call: Any = self._config.producer.publish
        for middleware in middlewares:
            call = partial(middleware, call)
        await call(cmd)

    async def publish(self, message: Any, /, *, correlation_id: str | None = None) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} publishes only what handlers return: use broker.publish().")

    request = publish


class ReplyPublisher(_AnswerPublisher):
    """Publishes to the `reply_to` of the handled message."""

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
    """Publishes an `OutboxResponse` to the queue that it names; the handler's publishers publish it too."""

    __slots__ = ("_handler",)

    def __init__(self, config: OutboxBrokerConfig, handler: HandlerCallWrapper[..., Any]) -> None:
        super().__init__(config)
        self._handler = handler

    def serves(self, config: OutboxBrokerConfig) -> bool:
        """Return whether it publishes for the broker or router with this configuration."""
        return self._config is config

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        context = self._config.context
        # A handler may belong to several brokers, each with its own ResponsePublisher.
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
