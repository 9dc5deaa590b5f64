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
from faststream_outbox.relay.targets.base import OneByOneTarget, OutageError, RefusedError, SharedLock

# Try a closed channel again for a second: the client reopens it by itself.
_REOPEN_INTERVAL: Final = 0.05
_REOPEN_ATTEMPTS: Final = 20


class RabbitTarget(OneByOneTarget):
    """A queue, by its name; or an exchange and a routing key: `exchange/key`. Each message is confirmed."""

    broker: RabbitBroker
    refusals = (PublishError, ChannelClosed)
    # AMQPError includes a message that RabbitMQ nacked: the queue is full or not available.
    outages = (AMQPError, OSError, RuntimeError)

    def __init__(self, broker: RabbitBroker) -> None:
        super().__init__(broker)
        self._lock = SharedLock()

    def check(self, destination: str) -> None:
        """Raise for a destination with neither an exchange nor a routing key."""
        if destination == "/":
            raise ValueError("'/' is no destination of RabbitMQ: give a queue, or exchange/routing-key.")

    async def start(self) -> None:
        """Connect, and check that messages are confirmed."""
        await super().start()
        channel = await self.broker.config.broker_config.channel_manager.get_channel()
        if not channel.publisher_confirms:
            raise ValueError(
                "A relay deletes a row when RabbitMQ confirms its message, and this broker asks for no confirmations: "
                "leave publisher_confirms=False out of RabbitBroker(default_channel=Channel(…))."
            )

    async def alive(self) -> bool:
        """Open a channel, and close it."""
        await self.start()
        await self.client.connected.wait()
        channel = await self.client.channel()
        await channel.close()
        return True

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
        raise OutageError("RabbitMQ closed the channel, and the client has not reopened it.")

    async def _publish(self, message: Outgoing) -> None:
        """Publish a message; raise `RefusedError` for one that RabbitMQ returns because no queue receives it."""
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
        # RabbitMQ returns an unroutable message before it confirms it, and the client raises nothing.
        if isinstance(getattr(confirmation, "delivery", None), Basic.Return):
            raise RefusedError(f"No queue is bound for {message.destination!r}: the message was returned.")
