"""RabbitMQ, through aio-pika."""

import asyncio
from typing import Any, Final

from aio_pika.exceptions import AMQPError
from aiormq.exceptions import ChannelClosed, ChannelInvalidStateError, PublishError
from faststream.rabbit import RabbitBroker, RabbitExchange
from faststream.rabbit.response import RabbitPublishCommand
from faststream.response.publish_type import PublishType
from pamqp.commands import Basic

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import OutageError, RefusedError
from faststream_outbox.relay.targets.gate import Gate
from faststream_outbox.relay.targets.one_by_one import OneByOneTarget

# For how long a channel may be closed, in all a second.
_LOOK_SECONDS: Final = 0.05
_LOOKS: Final = 20


class RabbitTarget(OneByOneTarget):
    """A queue, by its name; or an exchange and a routing key: `exchange/key`. Each message is confirmed."""

    broker: RabbitBroker

    def __init__(self, broker: RabbitBroker) -> None:
        super().__init__(broker)
        self._gate = Gate()

    def check(self, destination: str) -> None:
        """Refuse what has no routing key and no exchange."""
        if destination == "/":
            raise ValueError("A destination of RabbitMQ is a queue, or exchange/routing-key.")

    async def start(self) -> None:
        """Connect, and see that messages are confirmed."""
        await super().start()
        channel = await self.broker.config.broker_config.channel_manager.get_channel()
        if not channel.publisher_confirms:
            raise ValueError(
                "A relay deletes what RabbitMQ has confirmed, and this broker asks for no confirmations: "
                "leave publisher_confirms=False out of RabbitBroker(default_channel=Channel(…))."
            )

    async def alive(self) -> bool:
        """Open a channel, and close it."""
        await self.start()
        connection: Any = self.broker._connection  # noqa: SLF001 - FastStream does not tell it otherwise
        await connection.connected.wait()
        channel = await connection.channel()
        await channel.close()
        return True

    async def send(self, message: Outgoing) -> None:
        """Publish; RabbitMQ closes the channel on a message that it refuses, so it is found by trying each alone."""
        try:
            async with self._gate.together():
                await self._publish(message)
        except (ChannelClosed, ChannelInvalidStateError):
            async with self._gate.alone():
                await self._publish_on_new_channel(message)

    async def _publish_on_new_channel(self, message: Outgoing) -> None:
        """Publish when the client has opened the channel again, which it does by itself."""
        for _ in range(_LOOKS):
            try:
                return await self._publish(message)
            except ChannelInvalidStateError:
                await asyncio.sleep(_LOOK_SECONDS)
        raise OutageError("RabbitMQ has closed the channel, and it is not opened again.")

    async def _publish(self, message: Outgoing) -> None:
        """Publish; a message that reaches no queue comes back, and is refused."""
        exchange, slash, key = message.destination.partition("/")
        headers: dict[str, Any] = dict(message.headers)
        command = RabbitPublishCommand(
            message.payload,
            routing_key=key if slash else message.destination,
            exchange=RabbitExchange(exchange, declare=False) if slash and exchange else None,
            mandatory=True,
            headers=headers,
            content_type=headers.pop("content-type", None),
            correlation_id=message.correlation_id,
            message_id=message.message_id,
            persist=True,
            _publish_type=PublishType.PUBLISH,
        )
        confirmation = await self.producer.publish(command)
        # A message that no queue wants comes back before it is confirmed, and that is no error to the client.
        if isinstance(getattr(confirmation, "delivery", None), Basic.Return):
            raise RefusedError(f"No queue is bound for {message.destination!r}: the message was returned.")

    def translate(self, error: Exception) -> Exception:
        """Tell outages and refusals from the rest."""
        if isinstance(error, RefusedError | OutageError):
            return error
        if isinstance(error, PublishError | ChannelClosed):
            return RefusedError(f"{type(error).__name__}: {error}")
        # That includes a message that was not confirmed, but denied: the queue is full, or not well.
        if isinstance(error, AMQPError | OSError | RuntimeError):
            return OutageError(f"{type(error).__name__}: {error}")
        return error
