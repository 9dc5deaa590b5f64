"""Where a relay may send to: a real server, a destination on it for one test, and a consumer of it."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import uuid4

import nats
from aiokafka import AIOKafkaConsumer, TopicPartition
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker
from faststream.nats import JStream, NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.redis import RedisBroker, StreamSub

from tests.servers.kafka import Kafka
from tests.servers.kafka_cluster import KafkaPair
from tests.servers.nats import Nats
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis
from tests.servers.server import Server
from tests.waiting import until

PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class Received:
    """What arrived."""

    body: bytes
    headers: dict[str, Any]
    key: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    received_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Inbox:
    """All that has arrived, in the order in which it did."""

    messages: list[Received] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def by_key(self) -> dict[str, list[bytes]]:
        """What arrived of each key."""
        keys = defaultdict[str, list[bytes]](list)
        for message in self.messages:
            keys[message.headers.get("outbox_key", "")].append(message.body)
        return dict(keys)

    def put(self, message: Received) -> None:
        self.messages.append(message)

    async def until(self, number: int, *, seconds: float = 60) -> None:
        """Wait for so many different messages."""
        await until(self._ids, lambda ids: len(ids) >= number, seconds=seconds)

    def _ids(self) -> set[str | None]:
        return {message.headers.get("outbox_id") for message in self.messages}


class Endpoint(ABC):
    """A destination, and both ends of the way there."""

    running: Any
    #: What runs there.
    server: ClassVar[type[Server]]
    #: Whether what was sent while no consumer was connected is there later.
    keeps: ClassVar[bool] = True

    def __init__(self, server: Any) -> None:
        self.running = server
        self.name = f"p{uuid4().hex}"

    @property
    def destination(self) -> str:
        return self.name

    @abstractmethod
    def broker(self) -> Any:
        """Make what a relay sends through."""

    @abstractmethod
    async def prepare(self) -> None:
        """Create the destination."""

    @property
    @abstractmethod
    def subscription(self) -> dict[str, Any]:
        """The arguments of a FastStream subscriber."""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Inbox]:
        """Listen, from the first message on."""
        broker, inbox = self.broker(), Inbox()

        async def keep(message: Any) -> bytes:
            inbox.put(Received(message.body, dict(message.headers), None, message.message_id, message.correlation_id))
            return bytes(message.body)

        async def receive(_: bytes) -> None: ...

        broker.subscriber(**self.subscription, decoder=keep)(receive)
        async with broker:
            await broker.start()
            yield inbox


class RedisEndpoint(Endpoint):
    server = Redis
    kind: ClassVar[str]

    def broker(self) -> Any:
        return RedisBroker(self.running.url, logger=None)  # type: ignore[arg-type]  # None means what it means to the other brokers

    @property
    def destination(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def subscription(self) -> dict[str, Any]:
        return {self.kind: self.name}

    async def prepare(self) -> None:
        """Do nothing: Redis creates it with the first message."""


class RedisStream(RedisEndpoint):
    kind = "stream"

    @property
    def subscription(self) -> dict[str, Any]:
        return {"stream": StreamSub(self.name, last_id="0", max_records=100)}


class RedisList(RedisEndpoint):
    kind = "list"


class RedisChannel(RedisEndpoint):
    kind = "channel"
    keeps = False


class NatsEndpoint(Endpoint):
    server = Nats

    def broker(self) -> Any:
        return NatsBroker(self.running.url, logger=None)


class NatsStream(NatsEndpoint):
    @property
    def subscription(self) -> dict[str, Any]:
        return {"subject": self.name, "stream": self._stream, "deliver_policy": "all"}

    @property
    def _stream(self) -> JStream:
        return JStream(self.name, subjects=[self.name])

    async def prepare(self) -> None:
        client = await nats.connect(self.running.url)
        await client.jetstream().add_stream(name=self.name, subjects=[self.name])
        await client.close()


class NatsCore(NatsEndpoint):
    keeps = False

    @property
    def destination(self) -> str:
        return f"core:{self.name}"

    async def prepare(self) -> None:
        """Do nothing: subscribers need no preparation."""

    @property
    def subscription(self) -> dict[str, Any]:
        return {"subject": self.name}


class RabbitQueueEndpoint(Endpoint):
    server = RabbitMQ

    def broker(self) -> Any:
        return RabbitBroker(self.running.url, logger=None)

    @property
    def subscription(self) -> dict[str, Any]:
        return {"queue": self._queue}

    @property
    def _queue(self) -> RabbitQueue:
        return RabbitQueue(self.name, durable=True)

    async def prepare(self) -> None:
        async with self.broker() as broker:
            await broker.declare_queue(self._queue)


class KafkaEndpoint(Endpoint):
    server: ClassVar[type[Kafka]] = Kafka
    running: Kafka

    def broker(self) -> Any:
        return KafkaBroker(self.running.bootstrap_servers, logger=None)

    async def prepare(self) -> None:
        await self.running.create_topic(self.name, PARTITIONS)

    @property
    def subscription(self) -> dict[str, Any]:
        return {}

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Inbox]:
        """Read all partitions by the client alone: no group has to come together."""
        inbox = Inbox()
        consumer = AIOKafkaConsumer(bootstrap_servers=self.running.bootstrap_servers, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([TopicPartition(self.name, number) for number in range(PARTITIONS)])

        async def read() -> None:
            async for record in consumer:
                headers = {name: value.decode() for name, value in record.headers}
                key = None if record.key is None else record.key.decode()
                inbox.put(
                    Received(
                        record.value or b"", headers, key, headers.get("message_id"), headers.get("correlation_id")
                    )
                )

        reading = asyncio.create_task(read())
        try:
            yield inbox
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            await consumer.stop()


class ConfluentEndpoint(KafkaEndpoint):
    def broker(self) -> Any:
        return ConfluentBroker(self.running.bootstrap_servers, logger=None)


class KafkaPairEndpoint(KafkaEndpoint):
    """A topic that accepts nothing while one of its two replicas is away."""

    server = KafkaPair
    running: KafkaPair

    async def prepare(self) -> None:
        await self.running.create_replicated_topic(self.name, [1, 2, 1], min_insync_replicas="2")


class ConfluentPairEndpoint(KafkaPairEndpoint, ConfluentEndpoint):
    """The same, by the other client."""


ENDPOINTS: tuple[type[Endpoint], ...] = (
    KafkaEndpoint,
    ConfluentEndpoint,
    RabbitQueueEndpoint,
    NatsStream,
    NatsCore,
    RedisStream,
    RedisList,
    RedisChannel,
)
