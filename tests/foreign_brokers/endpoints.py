"""Where a handler of an outbox publishes to: each broker, how a publisher of it is written, and what arrives there."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from faststream import AckPolicy, BaseMiddleware
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker
from faststream.nats import JStream, NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.redis import RedisBroker, StreamSub

from tests.servers.kafka import Kafka
from tests.servers.nats import Nats
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis
from tests.servers.server import Server

# FastStream's brokers log each message, and the outages that are tested here.
QUIET = logging.getLogger("tests.foreign_brokers")
QUIET.setLevel(logging.CRITICAL + 1)


F = TypeVar("F")


class Decorator(Protocol):
    """A publisher or a subscriber, over a handler."""

    def __call__(self, func: F, /) -> F: ...


class Endpoint:
    """A topic, queue, subject or stream of its own, on one kind of server."""

    server_type: type[Server]
    #: Whether it keeps messages while no consumer is connected.
    keeps = True

    def __init__(self, server: Any) -> None:
        self.server = server
        self.name = f"t{uuid4().hex[:12]}"

    async def create(self) -> None:
        """Do what an operator does."""

    def broker(self, **options: Any) -> Any:
        raise NotImplementedError

    def publisher(self, broker: Any) -> Decorator:
        """Declare a publisher, as a user would."""
        publisher: Decorator = self._publisher(broker)
        return publisher

    def _publisher(self, broker: Any) -> Any:
        return broker.publisher(self.name)

    def subscriber(self, broker: Any) -> Decorator:
        """Declare a subscriber, of all that is kept from the beginning."""
        subscriber: Decorator = self._subscriber(broker)
        return subscriber

    def _subscriber(self, broker: Any) -> Any:
        return broker.subscriber(self.name)

    @asynccontextmanager
    async def listening(self, *middlewares: Any) -> AsyncIterator["asyncio.Queue[Any]"]:
        """Receive the messages, from the first that is kept."""
        messages = asyncio.Queue[Any]()

        class Keep(BaseMiddleware):
            async def consume_scope(self, call_next: Any, msg: Any) -> Any:
                messages.put_nowait(msg)
                return await call_next(msg)

        broker = self.broker(middlewares=[*middlewares, Keep])

        @self.subscriber(broker)
        async def handle(_body: Any) -> None: ...

        await broker.start()
        try:
            yield messages
        finally:
            await broker.stop()

    async def received(self, number: int) -> list[Any]:
        """Wait for so many messages of those that are kept."""
        async with self.listening() as messages, asyncio.timeout(60):
            return [await messages.get() for _ in range(number)]

    @staticmethod
    def key(_message: Any) -> bytes | None:
        """Return the key of a message, where there are keys."""
        return None


class KafkaTopic(Endpoint):
    server_type = Kafka

    async def create(self) -> None:
        await self.server.create_topic(self.name, 2)

    def broker(self, **options: Any) -> Any:
        return KafkaBroker(self.server.bootstrap_servers, logger=QUIET, **options)

    def _subscriber(self, broker: Any) -> Any:
        group, policy = uuid4().hex, AckPolicy.NACK_ON_ERROR
        return broker.subscriber(self.name, auto_offset_reset="earliest", group_id=group, ack_policy=policy)

    @staticmethod
    def key(message: Any) -> bytes | None:
        key: bytes | None = message.raw_message.key
        return key


class ConfluentTopic(KafkaTopic):
    def broker(self, **options: Any) -> Any:
        return ConfluentBroker(self.server.bootstrap_servers, logger=QUIET, **options)

    @staticmethod
    def key(message: Any) -> bytes | None:
        key: bytes | None = message.raw_message.key()
        return key


class RabbitQueueOf(Endpoint):
    server_type = RabbitMQ

    async def create(self) -> None:
        async with self.broker() as broker:
            await broker.declare_queue(RabbitQueue(self.name, durable=True))

    def broker(self, **options: Any) -> Any:
        return RabbitBroker(self.server.url, logger=QUIET, **options)

    def _publisher(self, broker: Any) -> Any:
        return broker.publisher(self.name, persist=True)

    def _subscriber(self, broker: Any) -> Any:
        return broker.subscriber(RabbitQueue(self.name, durable=True))


class JetStreamSubject(Endpoint):
    server_type = Nats

    def broker(self, **options: Any) -> Any:
        return NatsBroker(self.server.url, logger=QUIET, **{"reconnect_time_wait": 0.1, **options})

    def _publisher(self, broker: Any) -> Any:
        return broker.publisher(self.name, stream=JStream(f"s{self.name}"))

    def _subscriber(self, broker: Any) -> Any:
        return broker.subscriber(self.name, stream=JStream(f"s{self.name}"), deliver_policy="all")


class NatsSubject(JetStreamSubject):
    keeps = False

    def _publisher(self, broker: Any) -> Any:
        return broker.publisher(self.name)

    def _subscriber(self, broker: Any) -> Any:
        return broker.subscriber(self.name)


class RedisStreamOf(Endpoint):
    server_type = Redis

    def broker(self, **options: Any) -> Any:
        return RedisBroker(self.server.url, logger=QUIET, **options)

    def _publisher(self, broker: Any) -> Any:
        return broker.publisher(stream=self.name)

    def _subscriber(self, broker: Any) -> Any:
        return broker.subscriber(stream=StreamSub(self.name, last_id="0", polling_interval=10))


class RedisListOf(RedisStreamOf):
    def _publisher(self, broker: Any) -> Any:
        return broker.publisher(list=self.name)

    def _subscriber(self, broker: Any) -> Any:
        return broker.subscriber(list=self.name)


class RedisChannelOf(RedisStreamOf):
    keeps = False

    def _publisher(self, broker: Any) -> Any:
        return broker.publisher(channel=self.name)

    def _subscriber(self, broker: Any) -> Any:
        return broker.subscriber(channel=self.name)


ENDPOINTS: dict[str, type[Endpoint]] = {
    "kafka": KafkaTopic,
    "confluent": ConfluentTopic,
    "rabbit": RabbitQueueOf,
    "jetstream": JetStreamSubject,
    "nats": NatsSubject,
    "redis stream": RedisStreamOf,
    "redis list": RedisListOf,
    "redis channel": RedisChannelOf,
}
KEEPING = [name for name, endpoint in ENDPOINTS.items() if endpoint.keeps]
