"""Other brokers' publishers on our handlers: what goes along with an answer, and when it counts as sent."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from faststream.exceptions import SetupError
from faststream.response import PublishCommand

from faststream_outbox._faststream import HandlerCallWrapper, PublisherUsecase
from faststream_outbox.envelope import MESSAGE_ID, OUTBOX_ID, relay_headers
from faststream_outbox.publisher.usecase import OutboxPublisher
from faststream_outbox.storage import OutboxRow

Send = Callable[[Any], Awaitable[Any]]

# JetStream drops a second message with the same one.
_NATS_MESSAGE_ID: Final = "Nats-Msg-Id"
_NATS_IS_AWAY: Final = "The connection to NATS is lost, and its client would only keep the message."


def foreign_publishers(handlers: Iterable[HandlerCallWrapper[..., Any]]) -> Iterator[PublisherUsecase]:
    """Find the publishers on some handlers that are not an outbox's."""
    for handler in handlers:
        for each in handler._publishers:  # noqa: SLF001 - as FastStream does
            if isinstance(each, PublisherUsecase) and not isinstance(each, OutboxPublisher):
                yield each


def broker_of(publisher: PublisherUsecase) -> Any:
    """Return the broker that a publisher publishes through."""
    broker = publisher._outer_config.extra_context.get("broker")  # noqa: SLF001 - FastStream does not tell it otherwise
    if broker is None:
        raise SetupError(
            f"The publisher of {publisher.specification.name!r} belongs to a router that no broker includes: "
            "broker.include_router(router)."
        )
    return broker


class ForeignPublishing:
    """Sends what the handlers of one subscriber return to brokers of another kind.

    FastStream's publisher has made a command of it; this adds who the row was, and does not take silence for success.
    """

    def __init__(self, publishers: Iterable[PublisherUsecase], timeout: float | None) -> None:
        self._publishers = list(publishers)
        self._timeout = timeout

    @property
    def is_needed(self) -> bool:
        """Whether there is anybody to send to."""
        return bool(self._publishers)

    async def send(
        self, send: Send, cmd: PublishCommand, answered: OutboxRow | Sequence[OutboxRow], *, source: str
    ) -> Any:
        """Send what answers a row, or a batch of them, by the last step of its publisher."""
        dialect = _dialect(cmd)
        broker = self._broker(send)
        # A handler's publishers share the headers of its answer, so they are not changed in place.
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
                "it may have the message all the same."
            ) from error

    def _broker(self, send: Send) -> Any:
        """Find the broker whose producer is about to send; None when none of them says that it is its own."""
        producer = getattr(send, "__self__", None)
        for publisher in self._publishers:
            config: Any = publisher._outer_config  # noqa: SLF001 - FastStream does not tell it otherwise
            if producer in (config.producer, getattr(config, "js_producer", None)):
                return broker_of(publisher)
        return None


def _identity(cmd: PublishCommand, answered: OutboxRow | Sequence[OutboxRow], source: str) -> dict[str, str]:
    """Name what is sent after the row that it answers, the same at each attempt, where one row is one message.

    A batch is another one at the next attempt, and of several messages with one name an inbox would take the first.
    """
    if isinstance(answered, Sequence) or len(cmd.batch_bodies) > 1:
        return {}
    return relay_headers(answered, source=source)


def _key(answered: OutboxRow | Sequence[OutboxRow]) -> str | None:
    """Return the key of a row, or that of a batch if its rows have one in common."""
    keys = {row.entity_key for row in (answered if isinstance(answered, Sequence) else (answered,))}
    return keys.pop() if len(keys) == 1 else None


class _Dialect:
    """What all brokers are told in the same way."""

    # Whether a header is text and nothing else.
    text_headers: ClassVar[bool] = True

    def headers(self, cmd: PublishCommand) -> dict[str, Any]:
        """Return the headers as the broker takes them; a row's may be anything that JSON knows."""
        if not self.text_headers:
            return cmd.headers
        given = {name: value for name, value in cmd.headers.items() if value is not None}
        return {name: value if isinstance(value, str) else str(value) for name, value in given.items()}

    def identity(self, cmd: PublishCommand, own: dict[str, str]) -> dict[str, str]:
        """Return the headers that say who the message is; `message_id` is the answer's own, if it has one."""
        return {MESSAGE_ID: cmd.headers.get(MESSAGE_ID, own[OUTBOX_ID]), **own} if own else own

    def set_key(self, cmd: Any, key: str | None, broker: Any) -> None:
        """Let what has its order in the outbox keep it."""

    async def send(self, send: Send, cmd: Any, broker: Any) -> Any:  # noqa: ARG002 - others ask it
        """Send, and return when the broker has confirmed."""
        return await send(cmd)


class _Kafka(_Dialect):
    """Kafka by aiokafka."""

    def set_key(self, cmd: Any, key: str | None, broker: Any) -> None:
        """Give the row's key to a message that has none; without a body it would become a tombstone."""
        if key is not None and cmd.key is None and cmd.body is not None:
            serializes = broker is not None and broker._connection_kwargs.get("key_serializer")  # noqa: SLF001 - same
            cmd.key = key if serializes else key.encode()


class _Confluent(_Kafka):
    """Kafka by librdkafka."""

    async def send(self, send: Send, cmd: Any, broker: Any) -> Any:  # noqa: ARG002 - others ask it
        """Send; what we do not wait for any more is left to end by itself, because its callback would fail."""
        return await asyncio.shield(asyncio.ensure_future(send(cmd)))


class _Rabbit(_Dialect):
    """RabbitMQ, whose headers have types."""

    text_headers = False

    def identity(self, cmd: Any, own: dict[str, str]) -> dict[str, str]:
        """Set the property that RabbitMQ has for a message's id."""
        if own and not cmd.message_options.get(MESSAGE_ID):
            cmd.message_options = {**cmd.message_options, MESSAGE_ID: own[OUTBOX_ID]}
        return own

    async def send(self, send: Send, cmd: Any, broker: Any) -> Any:  # noqa: ARG002 - others ask it
        """Send, and fail for a message that came back, because no queue takes it."""
        from aiormq.abc import DeliveredMessage  # noqa: PLC0415 - an optional dependency
        from aiormq.exceptions import PublishError  # noqa: PLC0415 - same
        from pamqp.commands import Basic  # noqa: PLC0415 - same

        answer = await send(cmd)
        if isinstance(answer, DeliveredMessage) and isinstance(answer.delivery, Basic.Return):
            raise PublishError(answer, answer.delivery)
        return answer


class _Nats(_Dialect):
    """NATS: a stream confirms, and core NATS has to be asked."""

    def identity(self, cmd: Any, own: dict[str, str]) -> dict[str, str]:
        """Have a stream drop what it has already; by its subject too, as several publishers may share a stream."""
        named = super().identity(cmd, own)
        if own and cmd.stream:
            named = {_NATS_MESSAGE_ID: f"{own[OUTBOX_ID]}/{cmd.destination}", **named}
        return named

    async def send(self, send: Send, cmd: Any, broker: Any) -> Any:
        """Send; the client keeps a core message while it is disconnected, and calls that sent."""
        from nats.aio.client import Client  # noqa: PLC0415 - an optional dependency

        client = getattr(broker, "_connection", None)
        if cmd.stream or not isinstance(client, Client):
            return await send(cmd)
        if not client.is_connected:  # or it would keep a copy of each attempt, and send them all
            raise ConnectionError(_NATS_IS_AWAY)
        connections = client.stats["reconnects"]
        answer = await send(cmd)
        await client.flush()
        # While it is disconnected, a flush returns at once and means nothing.
        if not client.is_connected or client.stats["reconnects"] != connections:
            raise ConnectionError(_NATS_IS_AWAY)
        return answer


_PLAIN: Final = _Dialect()
# By the module of their commands, so that none of the clients need be installed.
_DIALECTS: Final[dict[str, _Dialect]] = {
    "faststream.kafka.response": _Kafka(),
    "faststream.confluent.response": _Confluent(),
    "faststream.rabbit.response": _Rabbit(),
    "faststream.nats.response": _Nats(),
}


def _dialect(cmd: PublishCommand) -> _Dialect:
    return next((_DIALECTS[each.__module__] for each in type(cmd).__mro__ if each.__module__ in _DIALECTS), _PLAIN)
