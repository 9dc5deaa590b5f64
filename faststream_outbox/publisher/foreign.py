"""Other brokers' publishers on our handlers: adds headers and key to an answer, and checks that it was confirmed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from faststream.exceptions import SetupError
from faststream.response import PublishCommand

from faststream_outbox._faststream import HandlerCallWrapper, PublisherUsecase
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.envelope import (
    MESSAGE_ID,
    OUTBOX_ID,
    OUTBOX_KEY,
    inherited_correlation_id,
    relay_headers,
    text_headers,
)
from faststream_outbox.publisher.nats_answers import nats_flushed, nats_permissions
from faststream_outbox.publisher.nats_headers import NATS_MESSAGE_ID, check_key
from faststream_outbox.publisher.usecase import OutboxPublisher
from faststream_outbox.storage import OutboxRow

Send = Callable[[Any], Awaitable[Any]]


def foreign_publishers(handlers: Iterable[HandlerCallWrapper[..., Any]]) -> Iterator[PublisherUsecase]:
    """Return the publishers on some handlers that belong to a broker of another kind."""
    for handler in handlers:
        for each in handler._publishers:  # noqa: SLF001 - as FastStream does
            if isinstance(each, PublisherUsecase) and not isinstance(each, OutboxPublisher):
                yield each


def publishes_to_other_outbox(handlers: Iterable[HandlerCallWrapper[..., Any]], config: OutboxBrokerConfig) -> bool:
    """Return whether a publisher on some handlers belongs to another outbox than the broker of this configuration."""
    broker = config.extra_context.get("broker")
    publishers = (each for handler in handlers for each in handler._publishers)  # noqa: SLF001 - as FastStream does
    return any(
        isinstance(each, OutboxPublisher) and each._outer_config.extra_context.get("broker") is not broker  # noqa: SLF001 - ours
        for each in publishers
    )


def broker_of(publisher: PublisherUsecase) -> Any:
    """Return the broker that a publisher publishes through."""
    broker = publisher._outer_config.extra_context.get("broker")  # noqa: SLF001 - FastStream has no public name for it
    if broker is None:
        raise SetupError(
            f"The publisher of {publisher.specification.name!r} belongs to a router that no broker includes: "
            "call broker.include_router(router)."
        )
    return broker


class ForeignPublishing:
    """Sends what the handlers of one subscriber return to brokers of another kind.

    FastStream's publisher makes the command; this adds headers that identify the row, and waits for the confirmation.
    """

    def __init__(self, publishers: Iterable[PublisherUsecase], timeout: float | None) -> None:
        self._publishers = list(publishers)
        self._timeout = timeout

    @property
    def is_needed(self) -> bool:
        """Whether any handler has a publisher of another broker."""
        return bool(self._publishers)

    async def send(
        self, send: Send, cmd: PublishCommand, answered: OutboxRow | Sequence[OutboxRow], *, source: str
    ) -> Any:
        """Send the answer to a row or a batch, by the last step of its publisher."""
        if not cmd.batch_bodies and getattr(send, "__name__", "") == "publish_batch":
            return None  # a middleware removed all bodies
        dialect = _dialect(cmd)
        broker = self._broker(send)
        first = answered[0] if isinstance(answered, Sequence) else answered
        cmd.correlation_id = inherited_correlation_id(cmd.correlation_id, first, source=source)
        # A handler's publishers share the headers of its answer: change a copy.
        cmd.headers = {**dialect.headers(cmd), **dialect.identity(cmd, _identity(cmd, answered, source))}
        dialect.set_key(cmd, _key(answered), broker)
        try:
            async with asyncio.timeout(self._timeout) as bound:
                return await dialect.send(send, cmd, broker)
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise TimeoutError(
                f"{cmd.destination!r} did not confirm within {self._timeout:g} seconds (publish_timeout); "
                "it may have received the message."
            ) from error

    def _broker(self, send: Send) -> Any:
        """Return the broker whose producer is about to send; None when no publisher has that producer."""
        producer = getattr(send, "__self__", None)
        for publisher in self._publishers:
            config: Any = publisher._outer_config  # noqa: SLF001 - FastStream has no public name for it
            if producer in (config.producer, getattr(config, "js_producer", None)):
                return broker_of(publisher)
        return None


def _identity(cmd: PublishCommand, answered: OutboxRow | Sequence[OutboxRow], source: str) -> dict[str, str]:
    """Return headers that identify the answer by its row, the same at each attempt.

    None for a batch, which may have other rows at the next attempt, nor for several messages in answer to one row, of
    which an inbox would accept only the first.
    """
    if isinstance(answered, Sequence) or len(cmd.batch_bodies) > 1:
        return {}
    return relay_headers(answered, source=source)


def _key(answered: OutboxRow | Sequence[OutboxRow]) -> str | None:
    """Return the key of a row, or of a batch whose rows all have the same key."""
    keys = {row.entity_key for row in (answered if isinstance(answered, Sequence) else (answered,))}
    return keys.pop() if len(keys) == 1 else None


class _Dialect:
    """How to send to a broker; this base class is for those without special rules."""

    def headers(self, cmd: PublishCommand) -> dict[str, Any]:
        """Return the headers in the form that the broker accepts: most accept text only."""
        return text_headers(cmd.headers)

    def identity(self, cmd: PublishCommand, own: dict[str, str]) -> dict[str, str]:
        """Return the headers that identify the message; a `message_id` of the answer is kept."""
        return {MESSAGE_ID: cmd.headers.get(MESSAGE_ID, own[OUTBOX_ID]), **own} if own else own

    def set_key(self, cmd: Any, key: str | None, broker: Any) -> None:
        """Give the row's key to the message, so that it keeps its order."""

    async def send(self, send: Send, cmd: Any, broker: Any) -> Any:  # noqa: ARG002 - for NATS
        """Send, and wait until the broker has confirmed."""
        return await send(cmd)


class _Kafka(_Dialect):
    """Kafka through aiokafka."""

    def set_key(self, cmd: Any, key: str | None, broker: Any) -> None:
        """Give the row's key to a message that has none, unless it has no body: that would make it a tombstone."""
        if key is not None and cmd.key is None and cmd.body is not None:
            serializes = broker is not None and broker._connection_kwargs.get("key_serializer")  # noqa: SLF001 - same
            cmd.key = key if serializes else key.encode()


class _Confluent(_Kafka):
    """Kafka through librdkafka."""

    async def send(self, send: Send, cmd: Any, broker: Any) -> Any:  # noqa: ARG002 - for NATS
        """Send; after a timeout let the send end by itself, because librdkafka's callback fails on a cancelled one."""
        return await asyncio.shield(asyncio.ensure_future(send(cmd)))


class _Rabbit(_Dialect):
    """RabbitMQ: headers have types, and the id is a property."""

    def headers(self, cmd: PublishCommand) -> dict[str, Any]:
        """Return the headers as they are."""
        return cmd.headers

    def identity(self, cmd: Any, own: dict[str, str]) -> dict[str, str]:
        """Set the property of the message's id."""
        if own and not cmd.message_options.get(MESSAGE_ID):
            cmd.message_options = {**cmd.message_options, MESSAGE_ID: own[OUTBOX_ID]}
        return own

    async def send(self, send: Send, cmd: Any, broker: Any) -> Any:  # noqa: ARG002 - for NATS
        """Send; raise for a message that RabbitMQ returned because no queue receives it."""
        from aiormq.abc import DeliveredMessage  # noqa: PLC0415 - an optional dependency
        from aiormq.exceptions import PublishError  # noqa: PLC0415 - same
        from pamqp.commands import Basic  # noqa: PLC0415 - same

        answer = await send(cmd)
        if isinstance(answer, DeliveredMessage) and isinstance(answer.delivery, Basic.Return):
            raise PublishError(answer, answer.delivery)
        return answer


class _Nats(_Dialect):
    """NATS: a stream confirms, core NATS must be flushed."""

    def identity(self, cmd: Any, own: dict[str, str]) -> dict[str, str]:
        """Add the id by which a stream drops duplicates; with the subject, as several publishers may share a stream."""
        check_key(own.get(OUTBOX_KEY))
        named = super().identity(cmd, own)
        if own and cmd.stream:
            named = {NATS_MESSAGE_ID: f"{own[OUTBOX_ID]}/{cmd.destination}", **named}
        return named

    async def send(self, send: Send, cmd: Any, broker: Any) -> Any:
        """Send, and wait until the server has the message."""
        from nats.aio.client import Client  # noqa: PLC0415 - an optional dependency

        client = getattr(broker, "_connection", None)
        if cmd.stream or not isinstance(client, Client):
            return await send(cmd)
        with nats_permissions(client, [cmd.destination]) as check:
            async with nats_flushed(client):
                answer = await send(cmd)
            check(cmd.destination)
        return answer


_PLAIN: Final = _Dialect()
# By the module of the command, so that no client needs to be installed.
_DIALECTS: Final[dict[str, _Dialect]] = {
    "faststream.kafka.response": _Kafka(),
    "faststream.confluent.response": _Confluent(),
    "faststream.rabbit.response": _Rabbit(),
    "faststream.nats.response": _Nats(),
}


def _dialect(cmd: PublishCommand) -> _Dialect:
    return next((_DIALECTS[each.__module__] for each in type(cmd).__mro__ if each.__module__ in _DIALECTS), _PLAIN)
