"""Sends batches that we fill ourselves through aiokafka's producer: idempotent, and confirmed by all replicas."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer, errors

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import OutageError, RefusedError, SharedLock, Target, error_text

# Large enough for hundreds of messages in a request, far below the 1 MB that Kafka accepts by default.
_BATCH_BYTES: Final = 256 * 1024
# How long a producer may take to stop when it has nothing left to send.
_STOP_SECONDS: Final = 5.0
# Kafka creates a topic sooner than this, if it creates topics by itself: one unknown after this time does not exist.
_TOPIC_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 3.0

# aiokafka's `BatchBuilder`, which has no types: messages for one partition, which accepts all of them or none.
Batch = Any


def append(batch: Batch, message: Outgoing) -> bool:
    """Append a message; return False when there is no room. The first message always fits."""
    headers = [(name, value.encode()) for name, value in message.headers.items()]
    key = None if message.key is None else message.key.encode()
    return batch.append(timestamp=None, key=key, value=message.payload, headers=headers) is not None


class BatchProducer(Target):
    """Connects to Kafka and sends batches; replaces its producer after a batch that failed.

    aiokafka numbers the messages of a partition when it sends them. A batch that Kafka refused leaves a gap in the
    numbers, and Kafka then accepts nothing more from that producer; a new producer starts at 0.
    """

    refusals = (
        errors.MessageSizeTooLargeError,
        errors.RecordListTooLargeError,
        errors.InvalidTopicError,
        errors.UnknownTopicOrPartitionError,
        errors.TopicAuthorizationFailedError,
        errors.CorruptRecordException,
        errors.UnsupportedForMessageFormatError,
        errors.PolicyViolationError,
    )
    outages = (errors.KafkaError, OSError)

    def __init__(self) -> None:
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._lock = SharedLock()

    def use_options(self, options: Mapping[str, Any]) -> None:
        """Give the next producer these options."""
        self.max_batch_bytes = max(int(options.get("max_batch_size") or 0), _BATCH_BYTES)
        self._max_request_bytes = int(options.get("max_request_size") or 1024 * 1024)
        # linger_ms=0: we fill the batches, so waiting for more messages gains nothing.
        self._options = {
            **options,
            "enable_idempotence": True,
            "acks": "all",
            "linger_ms": 0,
            "max_batch_size": self.max_batch_bytes,
            "max_request_size": max(self._max_request_bytes, 2 * self.max_batch_bytes),
            "transactional_id": None,
        }

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
        """Disconnect; rows that are not confirmed by now will be sent again by another relay or after a restart."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._close(producer)

    async def _close(self, producer: AIOKafkaProducer) -> None:
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await producer.stop()
        except TimeoutError:
            # It still waits for confirmations.
            await producer._sender.close()  # noqa: SLF001 - aiokafka has no other way to give up
            await producer.client.close()

    async def alive(self) -> bool:
        """Connect if necessary, and return whether Kafka answers."""
        await self.start()
        return await self._all_topics(self._connected()) is not None

    async def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic; asking lets Kafka create it, if it creates topics by itself."""
        producer = self._connected()
        try:
            async with asyncio.timeout(_TOPIC_SECONDS):
                return sorted(await producer.partitions_for(topic))
        except TimeoutError as error:
            # Kafka may have come back just now, so the topic is missing only if this answer does not have it.
            cluster = await self._all_topics(producer)
            if cluster is None:
                raise OutageError("Kafka did not answer which topics it has.") from error
            if found := cluster.partitions_for_topic(topic):
                return sorted(found)
            raise errors.UnknownTopicOrPartitionError from error

    async def _all_topics(self, producer: AIOKafkaProducer) -> Any:
        """Return what Kafka says of all its topics; `None` if it does not answer."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await producer.client.fetch_all_metadata()
        except (TimeoutError, errors.KafkaError):
            return None

    def new_batch(self) -> Batch:
        """Return an empty batch."""
        return self._connected().create_batch()

    async def send_batch(self, batch: Batch, topic: str, partition: int) -> None:
        """Send a batch and wait without limit until all replicas have it: a second send could duplicate it."""
        if batch.record_count() == 1 and (size := batch.size()) > self._max_request_bytes:
            raise RefusedError(
                f"The message has {size:,} bytes with its headers, more than {self._max_request_bytes:,}: raise "
                "KafkaBroker(…, max_request_size=…), and max.message.bytes of the topic."
            )
        async with self._lock.shared():
            producer = self._connected()
            try:
                batch.close()
                return await self.wait_confirmed(await producer.send_batch(batch, topic, partition=partition), topic)
            except errors.KafkaError as error:
                failure = error
        await self._replace(producer)
        raise self.translate(failure) from failure

    async def _replace(self, failed: AIOKafkaProducer) -> None:
        """Replace a producer, when no other batch waits for its confirmation."""
        async with self._lock.exclusive():
            if self._producer is not failed:
                return  # it was replaced meanwhile, or we were stopped
            try:
                self._producer = await self._open()
            except Exception as error:
                self._producer = None
                raise OutageError(error_text(error)) from error
            finally:
                await self._close(failed)

    def _connected(self) -> AIOKafkaProducer:
        if self._producer is None:
            raise OutageError("Kafka is not connected.")
        return self._producer
