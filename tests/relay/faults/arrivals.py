"""Reads the messages on a server, in the order in which they arrived."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import aio_pika
import nats
from aiokafka import AIOKafkaConsumer, TopicPartition
from faststream.redis.parser import BinaryMessageFormatV1
from redis.asyncio import Redis as RedisClient

from tests.relay.endpoints import PARTITIONS, Endpoint, KafkaEndpoint, NatsEndpoint, RabbitQueueEndpoint, RedisEndpoint

_DATA = b"__data__"


class Item(NamedTuple):
    """One message; `epoch` is when the server took it, or when it was read where the server does not say."""

    partition: str
    epoch: float
    body: bytes
    headers: Mapping[str, Any]


class Arrivals(ABC):
    """Reads what has come since it was read last; only what was read whole counts as read."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    @abstractmethod
    def read(self) -> AsyncIterator[Item]:
        """Give all that is there and was not given before."""


class RedisArrivals(Arrivals):
    _last = "-"

    async def read(self) -> AsyncIterator[Item]:
        client: Any = RedisClient.from_url(self.endpoint.running.url)
        async with client:
            for entry_id, fields in await client.xrange(self.endpoint.name, self._last):
                body, headers = BinaryMessageFormatV1.parse(fields[_DATA])
                self._last = f"({entry_id.decode()}"
                yield Item("stream", int(entry_id.split(b"-")[0]) / 1000, body, headers)


class NatsArrivals(Arrivals):
    _read = 0

    async def read(self) -> AsyncIterator[Item]:
        client = await nats.connect(self.endpoint.running.url)
        try:
            stream = client.jetstream()
            last = (await stream.stream_info(self.endpoint.name)).state.last_seq
            for number in range(self._read + 1, last + 1):
                message = await stream.get_msg(self.endpoint.name, number)
                self._read = number
                at = message.time.timestamp() if isinstance(message.time, datetime) else time.time()
                yield Item("stream", at, message.data or b"", message.headers or {})
        finally:
            await client.close()


class RabbitArrivals(Arrivals):
    async def read(self) -> AsyncIterator[Item]:
        async with await aio_pika.connect(self.endpoint.running.url) as connection:
            queue = await (await connection.channel()).get_queue(self.endpoint.name)
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                yield Item("queue", datetime.now(UTC).timestamp(), message.body, message.headers)


class KafkaArrivals(Arrivals):
    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._next = {TopicPartition(endpoint.name, number): 0 for number in range(PARTITIONS)}

    async def read(self) -> AsyncIterator[Item]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.endpoint.running.bootstrap_servers, auto_offset_reset="earliest"
        )
        async with consumer:
            ends = await consumer.end_offsets(list(self._next))
            for partition, end in ends.items():
                consumer.assign([partition])
                consumer.seek(partition, self._next[partition])
                while await consumer.position(partition) < end:
                    record = await consumer.getone(partition)
                    self._next[partition] = record.offset + 1
                    headers = {name: value.decode() for name, value in record.headers}
                    name = f"partition {partition.partition}"
                    yield Item(name, record.timestamp / 1000, record.value or b"", headers)


def arrivals_of(endpoint: Endpoint) -> Arrivals:
    """Return the reader of an endpoint."""
    match endpoint:
        case RedisEndpoint():
            return RedisArrivals(endpoint)
        case NatsEndpoint():
            return NatsArrivals(endpoint)
        case RabbitQueueEndpoint():
            return RabbitArrivals(endpoint)
        case KafkaEndpoint():
            return KafkaArrivals(endpoint)
        case _:
            raise TypeError(f"{endpoint} keeps nothing.")
