"""A producer of aiokafka's that sends batches of ours: idempotent, confirmed by all replicas, one per partition."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer, errors

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import OutageError, RefusedError
from faststream_outbox.relay.targets.gate import Gate

# Large enough that a request is shared by hundreds of messages, far below what Kafka takes by default.
_BATCH_BYTES: Final = 256 * 1024
# For how long a producer may take to end with nothing left to send.
_STOP_SECONDS: Final = 5.0
# A topic that Kafka does not know after this time does not exist: it makes those soon that it makes by itself.
_TOPIC_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 3.0

REFUSALS: Final = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidTopicError,
    errors.UnknownTopicOrPartitionError,
    errors.TopicAuthorizationFailedError,
    errors.CorruptRecordException,
    errors.UnsupportedForMessageFormatError,
    errors.PolicyViolationError,
)


class Batch:
    """Messages for one partition, which takes all of them or none."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def add(self, message: Outgoing) -> bool:
        """Put a message behind the others; false when there is no room. For the first there always is."""
        headers = [(name, value.encode()) for name, value in message.headers.items()]
        key = None if message.key is None else message.key.encode()
        return self._builder.append(timestamp=None, key=key, value=message.payload, headers=headers) is not None

    @property
    def count(self) -> int:
        """How many messages it has."""
        return int(self._builder.record_count())

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return int(self._builder.size())

    def close(self) -> Any:
        """Let nothing be added any more."""
        self._builder.close()
        return self._builder


class BatchProducer:
    """Sends batches, and begins anew after one that failed.

    aiokafka numbers the messages of a partition when it sends them. After a batch that Kafka has refused the numbers
    have a gap, and Kafka takes nothing more from that producer; a new one begins at nought.
    """

    def __init__(
        self, options: Mapping[str, Any], *, confirmed: Callable[[Awaitable[Any], str], Awaitable[None]]
    ) -> None:
        self.max_batch_bytes = max(int(options.get("max_batch_size") or 0), _BATCH_BYTES)
        self._max_request_bytes = int(options.get("max_request_size") or 1024 * 1024)
        # Batches are ours to fill: nothing is gained by waiting for more.
        self._options = {
            **options,
            "enable_idempotence": True,
            "acks": "all",
            "linger_ms": 0,
            "max_batch_size": self.max_batch_bytes,
            "max_request_size": max(self._max_request_bytes, 2 * self.max_batch_bytes),
            "transactional_id": None,
        }
        self._confirmed = confirmed
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._gate = Gate()

    async def start(self) -> None:
        """Connect."""
        async with self._starting:
            if self._producer is None:
                self._producer = await self._open()

    async def _open(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**self._options)
        try:
            await producer.start()
        except BaseException:
            with suppress(Exception):
                await producer.stop()
            raise
        return producer

    async def stop(self) -> None:
        """Disconnect; what is not confirmed by now is sent again by somebody."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._close(producer)

    async def _close(self, producer: AIOKafkaProducer) -> None:
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await producer.stop()
        except TimeoutError:
            # It waits for confirmations that do not come.
            await producer._sender.close()  # noqa: SLF001 - aiokafka knows no other way to give up
            await producer.client.close()

    async def answers(self) -> bool:
        """Ask for what every broker knows."""
        await self.start()
        return self._producer is not None and await self._knows_itself(self._producer)

    async def partitions(self, topic: str) -> list[int]:
        """Tell the partitions of a topic; Kafka makes it now, if that is how it is set up."""
        producer = self._connected()
        try:
            async with asyncio.timeout(_TOPIC_SECONDS):
                return sorted(await producer.partitions_for(topic))
        except TimeoutError as error:
            if not await self._knows_itself(producer):
                raise OutageError("Kafka does not tell which topics it has.") from error
            raise errors.UnknownTopicOrPartitionError from error

    async def _knows_itself(self, producer: AIOKafkaProducer) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await producer.client.fetch_all_metadata()
        except (TimeoutError, errors.KafkaError):
            return False
        return True

    def new_batch(self) -> "Batch":
        """Begin a batch."""
        return Batch(self._connected().create_batch())

    async def send(self, batch: "Batch", topic: str, partition: int) -> None:
        """Send a batch and wait until all replicas have it: for as long as it takes, because then it is there once."""
        if batch.count == 1 and batch.size > self._max_request_bytes:
            raise RefusedError(
                f"The message has {batch.size:,} bytes with its headers, and {self._max_request_bytes:,} may be sent: "
                "KafkaBroker(…, max_request_size=…) says how many, and max.message.bytes of the topic."
            )
        async with self._gate.together():
            producer = self._connected()
            failure = await self._deliver(producer, batch, topic, partition)
        if failure is not None:
            await self._renew(producer)
            raise self.translate(failure) from failure

    async def _deliver(
        self, producer: AIOKafkaProducer, batch: "Batch", topic: str, partition: int
    ) -> errors.KafkaError | None:
        try:
            await self._confirmed(await producer.send_batch(batch.close(), topic, partition=partition), topic)
        except errors.KafkaError as error:
            return error
        return None

    async def _renew(self, failed: AIOKafkaProducer) -> None:
        """Begin anew, when nobody else awaits a confirmation."""
        async with self._gate.alone():
            if self._producer is not failed:
                return  # somebody else has begun anew, or we have been stopped
            try:
                self._producer = await self._open()
            except Exception as error:
                self._producer = None
                raise OutageError(f"{type(error).__name__}: {error}") from error
            finally:
                await self._close(failed)

    def _connected(self) -> AIOKafkaProducer:
        if self._producer is None:
            raise OutageError("Kafka is not connected.")
        return self._producer

    @staticmethod
    def translate(error: Exception) -> Exception:
        """Tell outages and refusals from the rest."""
        if isinstance(error, REFUSALS):
            return RefusedError(str(error) or type(error).__name__)
        if isinstance(error, errors.KafkaError | OSError):
            return OutageError(f"{type(error).__name__}: {error}")
        return error
