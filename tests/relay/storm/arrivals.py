"""What lies on a server, in the order in which it arrived there."""

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

from tests.relay.destinations import PARTITIONS, KafkaPlace, NatsPlace, Place, RabbitQueuePlace, RedisPlace

_DATA = b"__data__"


class Item(NamedTuple):
    """One message; `epoch` is when the server took it, or when it was read where the server does not say."""

    partition: str
    epoch: float
    body: bytes
    headers: Mapping[str, Any]


class Shelf(ABC):
    """Reads what has come since it was read last; only what was read whole counts as read."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def read(self) -> AsyncIterator[Item]:
        """Give all that is there and was not given before."""


class RedisShelf(Shelf):
    _last = "-"

    async def read(self) -> AsyncIterator[Item]:
        client: Any = RedisClient.from_url(self.place.running.url)
        async with client:
            for entry_id, fields in await client.xrange(self.place.name, self._last):
                body, headers = BinaryMessageFormatV1.parse(fields[_DATA])
                self._last = f"({entry_id.decode()}"
                yield Item("stream", int(entry_id.split(b"-")[0]) / 1000, body, headers)


class NatsShelf(Shelf):
    _read = 0

    async def read(self) -> AsyncIterator[Item]:
        client = await nats.connect(self.place.running.url)
        try:
            stream = client.jetstream()
            last = (await stream.stream_info(self.place.name)).state.last_seq
            for number in range(self._read + 1, last + 1):
                message = await stream.get_msg(self.place.name, number)
                self._read = number
                at = message.time.timestamp() if isinstance(message.time, datetime) else time.time()
                yield Item("stream", at, message.data or b"", message.headers or {})
        finally:
            await client.close()


class RabbitShelf(Shelf):
    async def read(self) -> AsyncIterator[Item]:
        async with await aio_pika.connect(self.place.running.url) as connection:
            queue = await (await connection.channel()).get_queue(self.place.name)
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                yield Item("queue", datetime.now(UTC).timestamp(), message.body, message.headers)


class KafkaShelf(Shelf):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._next = {TopicPartition(place.name, number): 0 for number in range(PARTITIONS)}

    async def read(self) -> AsyncIterator[Item]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.place.running.bootstrap_servers, auto_offset_reset="earliest"
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


def shelf_of(place: Place) -> Shelf:
    """Find out how a place is read."""
    match place:
        case RedisPlace():
            return RedisShelf(place)
        case NatsPlace():
            return NatsShelf(place)
        case RabbitQueuePlace():
            return RabbitShelf(place)
        case KafkaPlace():
            return KafkaShelf(place)
        case _:
            raise TypeError(f"{place} keeps nothing.")
