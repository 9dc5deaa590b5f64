"""RabbitMQ, through aio-pika."""

import asyncio
import struct
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from weakref import WeakValueDictionary

from aio_pika import Connection, DeliveryMode, Message, RobustConnection
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import AMQPConnectionError, AMQPError
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelClosed,
    ChannelInvalidStateError,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    DeliveryError,
    PublishError,
)
from faststream.rabbit import RabbitBroker
from pamqp.commands import Basic
from pamqp.encode import field_table

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import (
    ConnectionLostError,
    DestinationCheck,
    OneByOneTarget,
    OutageError,
    RefusedError,
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
# A message that RabbitMQ refuses closes its channel. For so long after it, messages for that exchange are refused too,
# without being sent.
_REFUSED_SECONDS: Final = 1.0
# What RabbitMQ says if the user has a right to some routing keys of an exchange only.
_TOPIC_REFUSED: Final = "access to topic"
# How many messages are sent alone at a time, each on a channel of its own. The client does not answer RabbitMQ that has
# closed a channel if ten frames wait to be sent, and RabbitMQ then ignores the next channel with that number.
_MOST_ALONE: Final = 4
# How long a connection whose start failed may take to close; a silent RabbitMQ does not answer that either.
_CLOSE_SECONDS: Final = 2.0
# How many exchanges to remember of those that accept messages, and of those that refused one.
_REMEMBERED: Final = 10_000


class RabbitTarget(OneByOneTarget):
    """A queue, by its name; or an exchange and a routing key: `exchange/key`. Each message is confirmed."""

    broker: RabbitBroker
    refusals = (PublishError, ChannelClosed)
    unaccepted = (DeliveryError,)  # RabbitMQ nacked the message: the queue is full or not available
    outages = (AMQPError, OSError, RuntimeError)
    limits_time = True

    def __init__(self, broker: RabbitBroker) -> None:
        self._starting = asyncio.Lock()
        super().__init__(broker)
        # The exchanges that accepted a message. The first one for any other is sent alone: rows may choose exchanges
        # that are missing, and each would close the channel that others use. That of queues, "", is always there.
        self._accepting: dict[str, None] = {"": None}
        # Held while a message is the first one for an exchange.
        self._trying: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._alone = asyncio.Semaphore(_MOST_ALONE)
        # The connection of these channels: a busy one would have frames that wait to be sent.
        self._second: Connection | None = None
        self._connecting = asyncio.Lock()
        # Where messages were refused a moment ago: until when that counts, and what RabbitMQ said.
        self._refused: dict[str, tuple[float, str]] = {}

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
        if self._second is not None:
            second, self._second = self._second, None
            await _close(second)
        await super().stop()
        await self._close_unused()

    async def _close_unused(self) -> None:
        """Close the connection of a start that failed: it would try on without end, and survive its cancellation."""
        if self.client is None and self._made is not None:
            made, self._made = self._made, None
            await _close(made)

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
        """Publish a message beside others, or alone if RabbitMQ may close the channel on it.

        RabbitMQ closes the channel on a message that it refuses, and what is on its way there is sent again.
        """
        exchange = _exchange(message)
        if exchange not in self._accepting:
            lock = self._trying.setdefault(exchange, asyncio.Lock())
            async with lock:  # to wait takes nothing from the time that RabbitMQ has to confirm
                if exchange not in self._accepting:  # no other message has proved it meanwhile
                    await self._send_alone(message)
                    return
        async with self._time(message):
            sent = await self._publish_beside_others(message)
        if not sent:
            await self._send_alone(message)

    async def _send_alone(self, message: Outgoing) -> None:
        async with self._alone:
            try:
                async with self._time(message):
                    await self._publish_alone(message)
            except TimeoutError:
                self._note_accepting(message)  # without its exchange it would have been refused by now
                raise

    def _time(self, message: Outgoing) -> asyncio.Timeout:
        return asyncio.timeout(self.seconds_for(message.size))

    async def _publish_beside_others(self, message: Outgoing) -> bool:
        """Publish on the broker's channel; return False if RabbitMQ closed that, perhaps on this message."""
        closed = False
        for _ in range(_REOPEN_ATTEMPTS):
            try:
                await self._publish(message, await self.broker.config.broker_config.channel_manager.get_channel())
            except ChannelInvalidStateError:
                await asyncio.sleep(_REOPEN_INTERVAL)
            except ChannelClosed as error:
                if closed or not _names_another(error, message):
                    return False
                closed = True
            else:
                return True
        raise OutageError("RabbitMQ closed the channel, and the client has not reopened it.")

    async def _publish_alone(self, message: Outgoing) -> None:
        """Publish on a channel that no other message uses."""
        self._check_known(message)
        channel = await (await self._second_connection()).channel()
        try:
            await self._publish(message, channel)
        except (ChannelNotFoundEntity, ChannelAccessRefused) as error:
            self._note_refusal(message, error_text(error))
            raise
        except (RefusedError, DeliveryError):  # it has the exchange
            self._note_accepting(message)
            raise
        else:
            self._note_accepting(message)
        finally:
            await _close(channel)

    async def _second_connection(self) -> Connection:
        async with self._connecting:
            if self._second is None or not self._second.connected.is_set():
                if self.client is None:
                    raise OutageError("RabbitMQ is not connected.")
                second = self._new_connection()
                await second.connect()
                self._second = second
            return self._second

    def _note_accepting(self, message: Outgoing) -> None:
        if len(self._accepting) >= _REMEMBERED:  # rows may name any number of exchanges
            del self._accepting[next(iter(self._accepting))]
        self._accepting[_exchange(message)] = None

    def _note_refusal(self, message: Outgoing, why: str) -> None:
        """Remember for which exchange messages are refused, or, if RabbitMQ says so, for which routing key of it."""
        now = time.monotonic()
        if len(self._refused) >= _REMEMBERED:
            self._refused = {each: known for each, known in self._refused.items() if now < known[0]}
        if _TOPIC_REFUSED in why:
            place = message.destination
        else:
            self._accepting.pop(_exchange(message), None)
            place = f"{_exchange(message)}/"
        self._refused[place] = now + _REFUSED_SECONDS, why

    def _check_known(self, message: Outgoing) -> None:
        """Raise for a message like one that RabbitMQ refused a moment ago."""
        for place in (f"{_exchange(message)}/", message.destination):
            until, why = self._refused.get(place, (0.0, ""))
            if time.monotonic() < until:
                raise RefusedError(why)

    async def _publish(self, message: Outgoing, channel: AbstractChannel) -> None:
        """Publish a message; raise `RefusedError` for one that RabbitMQ returns because no queue receives it."""
        self._check_known(message)
        self._check_sizes(message)
        headers: dict[str, Any] = {name: value for name, value in message.headers.items() if name not in _STEERING}
        name, slash, key = message.destination.partition("/")
        try:
            encoded = Message(
                message.payload,
                headers=headers,
                content_type=headers.pop("content-type", None),
                correlation_id=message.correlation_id,
                message_id=message.message_id,
                delivery_mode=DeliveryMode.PERSISTENT,
                timestamp=datetime.now(UTC),
            )
            # Not declared, so that the client does not look for it when it reconnects.
            exchange = await channel.get_exchange(name if slash else "", ensure=False)
            confirmation = await exchange.publish(encoded, key if slash else message.destination, mandatory=True)
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


async def _close(opened: AbstractChannel | AbstractConnection) -> None:
    async def close() -> None:
        await opened.close()

    with suppress(Exception):  # it may be closed, or RabbitMQ be silent
        await within(_CLOSE_SECONDS, close())


def _exchange(message: Outgoing) -> str:
    """Return the exchange of a message; that of a queue has no name."""
    exchange, slash, _ = message.destination.partition("/")
    return exchange if slash else ""


def _names_another(error: ChannelClosed, message: Outgoing) -> bool:
    """Return whether RabbitMQ closed the channel on a message for another exchange, as its error says."""
    name = _exchange(message) or "amq.default"
    return "exchange '" in str(error) and f"exchange '{name}'" not in str(error)
