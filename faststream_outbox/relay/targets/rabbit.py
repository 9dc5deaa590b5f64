"""RabbitMQ, through aio-pika."""

import asyncio
import struct
import time
from contextlib import suppress
from typing import Any, Final

from aio_pika import Connection, RobustConnection
from aio_pika.exceptions import AMQPConnectionError, AMQPError
from aiormq.exceptions import (
    ChannelClosed,
    ChannelInvalidStateError,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    DeliveryError,
    PublishError,
)
from faststream.rabbit import RabbitBroker, RabbitExchange
from faststream.rabbit.response import RabbitPublishCommand
from faststream.response.publish_type import PublishType
from pamqp.commands import Basic
from pamqp.encode import field_table

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import (
    ConnectionLostError,
    DestinationCheck,
    OneByOneTarget,
    OutageError,
    RefusedError,
    SharedLock,
    error_text,
)
from faststream_outbox.runtime.timeouts import within

# RabbitMQ sends a message with these headers to other queues as well.
_STEERING: Final = frozenset({"CC", "BCC"})
# RabbitMQ's client cuts the names of headers behind this many bytes.
_MAX_NAME_BYTES: Final = 128
# What AMQP allows for routing keys, ids and the content type.
_MAX_TEXT_BYTES: Final = 255
# UTF-8 has at most so many.
_BYTES_PER_CHARACTER: Final = 4
# What a frame holds beside the table of headers, at most: the frame itself, ids and the content type.
_PROPERTIES_BYTES: Final = 8 + 14 + 3 * (1 + _MAX_TEXT_BYTES) + 16
# Try a closed channel again for a second: the client reopens it by itself.
_REOPEN_INTERVAL: Final = 0.05
_REOPEN_ATTEMPTS: Final = 20
# A message for an exchange that is missing closes the channel, and those on their way beside it are sent again. For so
# long after it, messages for that exchange are refused without being sent.
_MISSING_SECONDS: Final = 1.0
# How long a connection whose start failed may take to close; a silent RabbitMQ does not answer that either.
_CLOSE_SECONDS: Final = 2.0
# How many exchanges to remember before those are forgotten that do not matter any more.
_REMEMBERED: Final = 1_000


class RabbitTarget(OneByOneTarget):
    """A queue, by its name; or an exchange and a routing key: `exchange/key`. Each message is confirmed."""

    broker: RabbitBroker
    refusals = (PublishError, ChannelClosed)
    unaccepted = (DeliveryError,)  # RabbitMQ nacked the message: the queue is full or not available
    outages = (AMQPError, OSError, RuntimeError)

    def __init__(self, broker: RabbitBroker) -> None:
        self._starting = asyncio.Lock()
        super().__init__(broker)
        self._lock = SharedLock()
        # The exchanges that were missing a moment ago: until when that counts, and what RabbitMQ said.
        self._missing: dict[str, tuple[float, str]] = {}

    def use(self, broker: RabbitBroker) -> None:
        """Connect by another FastStream broker from now on."""
        super().use(broker)
        # The connection that the broker has made last, also if it never got so far as to be the broker's `client`.
        self._made: RobustConnection | None = None
        broker._connection_kwargs["connection_class"] = self._make_connection  # noqa: SLF001 - no public name for it

    def _make_connection(self, *args: Any, **options: Any) -> RobustConnection:
        self._made = RobustConnection(*args, **options)
        return self._made

    def check(self, destination: str) -> None:
        """Raise for a destination with neither an exchange nor a routing key."""
        if destination == "/":
            raise ValueError("'/' is no destination of RabbitMQ: give a queue, or exchange/routing-key.")

    async def look_up(self, destination: str) -> DestinationCheck:
        """Ask RabbitMQ for a queue or an exchange, on a new connection: it closes a channel that asks in vain."""
        exchange, slash, key = destination.partition("/")
        what = f"exchange {exchange!r}" if slash and exchange else f"queue {key if slash else destination!r}"
        connection = self._new_connection()
        await connection.connect()
        try:
            channel = await connection.channel()
            if slash and exchange:
                await channel.get_exchange(exchange, ensure=True)
            else:
                await channel.get_queue(key if slash else destination, ensure=True)
        except ChannelLockedResource:
            pass  # another connection has it for itself, and messages can be sent to it
        except ChannelNotFoundEntity:
            place = f"virtual host {self.client.url.path.removeprefix('/') or '/'!r}"
            return DestinationCheck(f"RabbitMQ has no {what} in {place}: declare it, as its consumer does", found=False)
        except ChannelClosed as error:
            return DestinationCheck(f"RabbitMQ does not let the relay see {what}: {error_text(error)}", found=False)
        finally:
            await connection.close()
        if slash and exchange:
            return DestinationCheck(f"{what} exists; only a message shows whether a queue is bound for {key!r}")
        return DestinationCheck(f"{what} exists")

    def _new_connection(self) -> Connection:
        return Connection(self.client.url, ssl_context=self.client.kwargs["context"])

    async def start(self) -> None:
        """Connect, and check that messages are confirmed."""
        async with self._starting:
            try:
                await super().start()
            finally:
                await self._close_unused()
        channel = await self.broker.config.broker_config.channel_manager.get_channel()
        if not channel.publisher_confirms:
            raise ValueError(
                "A relay deletes a row when RabbitMQ confirms its message, and this broker asks for no confirmations: "
                "leave publisher_confirms=False out of RabbitBroker(default_channel=Channel(…))."
            )

    async def stop(self) -> None:
        """Disconnect, if `start` connected; also what another caller of the broker has failed to connect."""
        await super().stop()
        await self._close_unused()

    async def _close_unused(self) -> None:
        """Close the connection of a start that failed: it would try on without end, and survive its cancellation."""
        if self.client is None and self._made is not None:
            made, self._made = self._made, None
            with suppress(Exception):
                await within(_CLOSE_SECONDS, made.close())

    async def alive(self) -> bool:
        """Open a channel, and close it."""
        await self.start()
        await self.client.connected.wait()
        channel = await self.client.channel()
        await channel.close()
        return True

    async def reachable(self) -> bool:
        """Open a connection as the broker does, and close it: the broker's own waits before it reconnects."""
        connection = self._new_connection()
        await connection.connect()
        await connection.close()
        return True

    @property
    def connection(self) -> object:
        """The transport, of which each connection has its own; None while there is none."""
        client = self.client
        return client.transport if client is not None and client.connected.is_set() else None

    def translate(self, error: Exception) -> Exception:
        """Return what an error means; the client raises one of a lost connection before it notes the loss."""
        if isinstance(error, AMQPConnectionError | ConnectionError):
            return ConnectionLostError(error_text(error))
        return super().translate(error)

    async def send(self, message: Outgoing) -> None:
        """Publish a message; RabbitMQ closes the channel on a refused one, so each message in flight is tried alone."""
        try:
            async with self._lock.shared():
                await self._publish(message)
        except (ChannelClosed, ChannelInvalidStateError):
            async with self._lock.exclusive():
                await self._publish_on_new_channel(message)

    async def _publish_on_new_channel(self, message: Outgoing) -> None:
        for _ in range(_REOPEN_ATTEMPTS):
            try:
                return await self._publish(message)
            except ChannelInvalidStateError:
                await asyncio.sleep(_REOPEN_INTERVAL)
            except ChannelNotFoundEntity as error:
                self._note_missing(_exchange(message), error)
                raise
        raise OutageError("RabbitMQ closed the channel, and the client has not reopened it.")

    def _note_missing(self, exchange: str, error: ChannelNotFoundEntity) -> None:
        now = time.monotonic()
        if len(self._missing) >= _REMEMBERED:  # rows may name any number of exchanges
            self._missing = {each: known for each, known in self._missing.items() if now < known[0]}
        self._missing[exchange] = now + _MISSING_SECONDS, error_text(error)

    async def _publish(self, message: Outgoing) -> None:
        """Publish a message; raise `RefusedError` for one that RabbitMQ returns because no queue receives it."""
        exchange, slash, key = message.destination.partition("/")
        until, why = self._missing.get(_exchange(message), (0.0, ""))
        if time.monotonic() < until:
            raise RefusedError(why)
        headers: dict[str, Any] = {name: value for name, value in message.headers.items() if name not in _STEERING}
        self._check_sizes(message)
        command = RabbitPublishCommand(
            message.payload,
            routing_key=key if slash else message.destination,
            # Not robust: the client would look for a robust one when it reconnects, and not connect without it.
            exchange=RabbitExchange(exchange, declare=False, robust=False) if slash and exchange else None,
            mandatory=True,
            headers=headers,
            content_type=headers.pop("content-type", None),
            correlation_id=message.correlation_id,
            message_id=message.message_id,
            persist=True,
            _publish_type=PublishType.PUBLISH,
        )
        try:
            confirmation = await self.producer.publish(command)
        except (ValueError, struct.error) as error:  # the client could not encode it, so nothing was sent
            raise RefusedError(f"RabbitMQ's client cannot send to {message.destination[:100]!r}: {error}.") from error
        # RabbitMQ returns an unroutable message before it confirms it, and the client raises nothing.
        if isinstance(getattr(confirmation, "delivery", None), Basic.Return):
            raise RefusedError(f"No queue is bound for {message.destination!r}: the message was returned.")

    def _check_sizes(self, message: Outgoing) -> None:
        """Raise for names and headers that the client would cut, or on which RabbitMQ would close the connection."""
        for name in message.headers:
            if len(name) * _BYTES_PER_CHARACTER > _MAX_NAME_BYTES and len(name.encode()) > _MAX_NAME_BYTES:
                raise RefusedError(f"The name of header {name[:40]!r}… has more than {_MAX_NAME_BYTES} bytes.")
        for name, text in (
            ("destination", message.destination.partition("/")[2] or message.destination),
            ("correlation id", message.correlation_id),
            ("message id", message.message_id),
            ("content type", message.headers.get("content-type", "")),
        ):
            if len(text) * _BYTES_PER_CHARACTER > _MAX_TEXT_BYTES and len(text.encode()) > _MAX_TEXT_BYTES:
                raise RefusedError(f"The {name} {text[:40]!r}… has more than {_MAX_TEXT_BYTES} bytes.")
        limit = self._frame_max
        most = sum(len(name) + len(value) for name, value in message.headers.items()) * _BYTES_PER_CHARACTER
        if limit and most + _MAX_NAME_BYTES * len(message.headers) > limit:  # a bound that is quick to see
            size = len(field_table(dict(message.headers))) + _PROPERTIES_BYTES
            if size > limit:
                raise RefusedError(f"The headers have {size:,} bytes, more than RabbitMQ's frame_max of {limit:,}.")

    @property
    def _frame_max(self) -> int:
        """The bytes of the largest frame, which has to hold all headers of a message; 0 while there is no limit."""
        transport = self.client.transport
        return 0 if transport is None else int(transport.connection.connection_tune.frame_max)


def _exchange(message: Outgoing) -> str:
    """Return the exchange of a message; that of a queue has no name."""
    exchange, slash, _ = message.destination.partition("/")
    return exchange if slash else ""
