"""Sends batches that we fill ourselves through aiokafka's producer: idempotent, and confirmed by all replicas."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from aiokafka import errors

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import (
    ConnectionLostError,
    DestinationCheck,
    NotAcceptedError,
    OutageError,
    RefusedError,
    Target,
    UnexplainedError,
    error_text,
)
from faststream_outbox.relay.targets.kafka_client import InvalidRecordError, Producer
from faststream_outbox.relay.targets.kafka_topics import (
    MissingTopicError,
    MissingTopics,
    SharedQuestion,
    describe_partitions,
    not_allowed,
)

# Large enough for hundreds of messages in a request, far below the 1 MB that Kafka accepts by default.
_BATCH_BYTES: Final = 256 * 1024
# How long a producer may take to stop when it has nothing left to send.
_STOP_SECONDS: Final = 5.0
# Kafka creates a topic sooner than this, if it creates topics by itself: one unknown after this time does not exist.
_TOPIC_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 3.0
# How long to wait between two questions whether Kafka has a topic.
_ASK_AGAIN_SECONDS: Final = 0.5

# Answers about the connection or the whole cluster, not about one topic.
_OUTAGES: Final = (errors.ClusterAuthorizationFailedError, errors.SaslAuthenticationFailed, errors.RequestTimedOutError)
# Answers that fit a bad message and a bad disk: who is at fault shows when the message is sent alone.
_UNEXPLAINED: Final = (errors.UnknownError, errors.CorruptRecordException)

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
    numbers, and Kafka then accepts nothing more from that producer; a new producer starts at 0. The old one is closed
    when its other batches are confirmed; a partition has one batch on its way, so its order does not depend on that.
    """

    outages = (errors.KafkaError, OSError)
    refusals = (
        errors.MessageSizeTooLargeError,
        errors.RecordListTooLargeError,
        errors.InvalidTopicError,
        errors.UnsupportedForMessageFormatError,
        errors.PolicyViolationError,
        InvalidRecordError,
    )

    def __init__(self) -> None:
        self._producer: Producer | None = None
        # Replaced ones that still wait for confirmations.
        self._retired: set[Producer] = set()
        self._starting = asyncio.Lock()
        self._missing = MissingTopics()
        self._whether_missing = SharedQuestion(self._is_missing)
        self._why_silent = SharedQuestion(self._describe)
        # When each partition confirmed a batch last.
        self._accepted_at: dict[tuple[str, int], float] = {}

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

    async def _open(self) -> Producer:
        producer = Producer(**self._options)
        if self.gives_up:
            producer.most_losses = 1
        try:
            await producer.start()
        except BaseException:
            with suppress(Exception):
                await producer.stop()
            raise
        return producer

    async def stop(self) -> None:
        """Disconnect; rows that are not confirmed by now will be sent again by another relay or after a restart."""
        producers, self._producer = [each for each in (self._producer, *self._retired) if each is not None], None
        await asyncio.gather(*(self._close(producer) for producer in producers))

    async def _close(self, producer: Producer) -> None:
        self._retired.discard(producer)
        try:
            async with asyncio.timeout(0 if producer.abandoned else _STOP_SECONDS):
                await producer.stop()
        except TimeoutError:
            await producer.break_off()

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
            if found := (await self._known_topics(producer)).partitions_for_topic(topic):
                return sorted(found)
            raise errors.UnknownTopicOrPartitionError from error

    async def _known_topics(self, producer: Producer) -> Any:
        """Return what Kafka says of all its topics."""
        if (cluster := await self._all_topics(producer)) is None:
            raise OutageError("Kafka did not answer which topics it has.")
        return cluster

    async def _all_topics(self, producer: Producer) -> Any:
        """Return what Kafka says of all its topics; `None` if it does not answer."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await producer.client.fetch_all_metadata()
        except (TimeoutError, errors.KafkaError):
            return None

    async def look_up(self, destination: str) -> DestinationCheck:
        """Ask Kafka whether it has a topic."""
        return await self._connected().look_up(destination)

    async def explain_silence(self, destination: str) -> str:
        """Return which partitions of a topic lack a leader or replicas."""
        return await self._why_silent.answer(destination)

    async def _describe(self, topic: str) -> str:
        producer = self._producer
        cluster = None if producer is None else await self._all_topics(producer)
        if cluster is None:
            return ""
        partitions = cluster._partitions.get(topic, {}).values()  # noqa: SLF001 - aiokafka has no public name
        return describe_partitions((each.partition, each.leader, each.replicas, each.isr) for each in partitions)

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
        self._missing.check(topic)
        producer = self._connected()
        producer.sending += 1
        try:
            batch.close()
            await self.wait_confirmed(await self._hand_over(producer, batch, topic, partition), topic)
        except errors.KafkaError as error:
            failure = error
        except NotAcceptedError:  # given up
            producer.abandoned = True
            raise
        else:
            self._accepted_at[topic, partition] = time.monotonic()
            return
        finally:
            producer.sending -= 1
            if not producer.sending and producer in self._retired:
                await self._close(producer)
        await self._replace(producer)
        raise await self._explain(failure, topic, partition) from failure

    async def _hand_over(self, producer: Producer, batch: Batch, topic: str, partition: int) -> Any:
        """Give a batch to a producer, which may wait for the topic, and return the confirmation to wait for."""
        try:
            async with asyncio.timeout(_TOPIC_SECONDS):
                return await producer.send_batch(batch, topic, partition=partition)
        except (TimeoutError, AssertionError) as error:  # it asserts that the topic, created anew, has the partition
            raise errors.UnknownTopicOrPartitionError from error

    async def _explain(self, error: errors.KafkaError, topic: str, partition: int) -> Exception:
        """Return what an error of a batch means; ask again for a topic that Kafka said it does not have."""
        if isinstance(error, _UNEXPLAINED):
            return UnexplainedError(error_text(error), accepted_at=self._accepted_at.get((topic, partition), 0.0))
        if isinstance(error, errors.KafkaConnectionError):
            return ConnectionLostError(f"The connection was lost: {error_text(error)}")
        if isinstance(error, errors.NotEnoughReplicasError):
            why = await self.explain_silence(topic)
            return NotAcceptedError(f"{topic} has fewer replicas in sync than min.insync.replicas: {why or error}.")
        if not isinstance(error, errors.UnknownTopicOrPartitionError | errors.NotLeaderForPartitionError):
            return self.translate(error)
        if await self._whether_missing.answer(topic):
            return self.note_missing(topic)
        return NotAcceptedError(f"Partition {partition} of {topic} has no leader at the moment: {error_text(error)}")

    def note_missing(self, topic: str) -> MissingTopicError:
        """Remember a missing topic, and return the error for its message.

        The client forgets it: otherwise each of its questions would name all topics that rows have ever named.
        """
        if self._producer is not None:
            self._producer.client._topics.discard(topic)  # noqa: SLF001 - aiokafka has no public name for it
        return self._missing.add(topic)

    async def _is_missing(self, topic: str) -> bool:
        """Return whether Kafka does not have a topic for some time; a broker that has just begun to lead may say so."""
        until = time.monotonic() + _TOPIC_SECONDS
        while not (await self._known_topics(self._connected())).partitions_for_topic(topic):
            if time.monotonic() > until:
                return True
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        return False

    def translate(self, error: Exception) -> Exception:
        """Return the `OutageError` or `RefusedError` that aiokafka's error means; any other error as it is."""
        match error:
            case errors.TopicAuthorizationFailedError():
                return not_allowed(str(error.args[0]) if error.args else "")
            case errors.BrokerResponseError() if not isinstance(error, (*self.refusals, *_OUTAGES)):
                return NotAcceptedError(error_text(error))
        return super().translate(error)

    async def _replace(self, failed: Producer) -> None:
        """Send the next batches through another producer."""
        async with self._starting:
            if self._producer is not failed:
                return  # it was replaced meanwhile, or we were stopped
            try:
                # Other partitions may use the old one until then: their numbers have no gap.
                producer = await self._open()
            except Exception as error:
                self._producer = None
                raise OutageError(error_text(error)) from error
            else:
                if self._producer is failed:
                    self._producer = producer
                else:  # we were stopped meanwhile
                    await self._close(producer)
            finally:
                self._retired.add(failed)
                if not failed.sending:
                    await self._close(failed)

    def _connected(self) -> Producer:
        if self._producer is None:
            raise OutageError("Kafka is not connected.")
        return self._producer
