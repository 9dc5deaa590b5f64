"""Publishes what a handler returns, by the statement that settles the message it answers."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NoReturn
from unittest.mock import NonCallableMock

from faststream.response import PublishCommand, PublishType

from faststream_outbox._faststream import HandlerCallWrapper, PublisherMiddleware, PublisherProto, PublisherUsecase
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.envelope import CORRELATION_ID, inherited_correlation_id
from faststream_outbox.message import OutboxMessage
from faststream_outbox.response import OutboxPublishCommand
from faststream_outbox.storage import AnySession, OutboxRow
from faststream_outbox.storage.commits import keeps_insert


def prepare_answer(cmd: OutboxPublishCommand, config: OutboxBrokerConfig) -> None:
    """Set the transaction of an answer, and the correlation id that it has from the handled message.

    Without a session, the answer to a message of the same broker is inserted by the statement that settles that
    message, and the answer to a message of another broker in its own transaction.
    """
    message = config.context.get_local("message")
    broker: Any = config.context.get_local("broker")
    if isinstance(message, OutboxMessage):
        inherit_correlation_id(cmd, message.deliveries[0], source=broker.config.broker_config.source)
    if cmd.session is not None:
        _check_transaction(cmd.session)
        return
    ours = isinstance(message, OutboxMessage) and broker is config.extra_context.get("broker")
    cmd.answered = message.deliveries[0] if ours else None  # of a batch, any delivery will do
    cmd.own_transaction = not ours


def _check_transaction(session: AnySession) -> None:
    """Raise `RuntimeError` if nobody would commit an answer: FastStream publishes it after the handler has returned."""
    if not isinstance(session, NonCallableMock) and not keeps_insert(session):  # tests may use mocks of sessions
        raise RuntimeError(
            "The session of this OutboxResponse has no open transaction any more, or none yet, and an answer is "
            "published after the handler has returned: nobody would commit it. Leave session out, and the answer is "
            "inserted when the message is settled; or take a parameter session: OutboxSession, which is committed then."
        )


def inherit_correlation_id(cmd: OutboxPublishCommand, answered: OutboxRow, *, source: str) -> None:
    """Replace a row's bare id, which its answer has from FastStream, by an id that no row of another outbox has."""
    if CORRELATION_ID not in cmd.headers:
        cmd.correlation_id = inherited_correlation_id(cmd.correlation_id, answered, source=source)


class _AnswerPublisher(PublisherProto):
    """A publisher that only a subscriber uses, for what its handler returned."""

    __slots__ = ("_config",)

    def __init__(self, config: OutboxBrokerConfig) -> None:
        self._config = config

    async def _send(self, cmd: OutboxPublishCommand, middlewares: Iterable[PublisherMiddleware]) -> None:
        prepare_answer(cmd, self._config)
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
