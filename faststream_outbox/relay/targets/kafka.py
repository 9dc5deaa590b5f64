"""Apache Kafka, through aiokafka: a target, and for each partition a sender that fills its batches."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any, Final

from aiokafka.errors import UnknownTopicOrPartitionError
from aiokafka.partitioner import DefaultPartitioner
from faststream.kafka import KafkaBroker

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import HoldsLease, LeaseLostError, RefusedError, SentRun
from faststream_outbox.relay.targets.kafka_producer import Batch, BatchProducer, append
from faststream_outbox.relay.targets.kafka_topics import MissingTopicError, check_topic

# A topic may accept smaller batches than its brokers do. Batches are then halved, down to this size.
_SMALLEST_BATCH_BYTES: Final = 1024


class KafkaTarget(BatchProducer):
    """Topics. The key of a row is the key of its message, so a key has one partition and keeps its order there.

    It connects with the options of the `KafkaBroker`, by its own producer: that one is always idempotent, waits for all
    replicas, and can be replaced after a failed batch.
    """

    check = staticmethod(check_topic)

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__()
        self.use(broker)
        self._senders: dict[tuple[str, int], _PartitionSender] = {}
        self._round_robin = count()

    def use(self, broker: KafkaBroker) -> None:
        """Connect by the options of another FastStream broker from now on."""
        self._broker = broker
        options: dict[str, Any] = broker._connection_kwargs  # noqa: SLF001 - FastStream has no public name for it
        self.use_options(options)
        self._partition_of = options.get("partitioner") or DefaultPartitioner()

    def twin(self) -> "KafkaTarget":
        """Return a target with its own producer, which knows what this one has sent."""
        twin = KafkaTarget(self._broker)
        twin.gives_up, twin._accepted_at, twin._missing = True, self._accepted_at, self._missing
        return twin

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send the messages of each topic to one of its partitions, in rotation; go on after a refused message."""
        errors: dict[int, Exception | None] = {}
        numbered = sorted(enumerate(messages), key=lambda each: each[1].destination)
        for topic, group in groupby(numbered, key=lambda each: each[1].destination):
            left = list(group)
            while left:
                confirmed, error = await self._send(topic, [message for _, message in left], lambda: True)
                errors |= {number: None for number, _ in left[:confirmed]}
                if error is None:
                    break
                stopped = left[confirmed : confirmed + 1] if isinstance(error, RefusedError) else left[confirmed:]
                errors |= {number: error for number, _ in stopped}
                left = left[confirmed + len(stopped) :]
        return [errors[number] for number in range(len(messages))]

    async def send_run(self, run: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        """Send the messages of a key in order, in one group for each topic that follows another."""
        confirmed = 0
        for topic, group in groupby(run, key=lambda message: message.destination):
            sent = await self._send(topic, list(group), holds_lease)
            confirmed += sent.confirmed
            if sent.error is not None:
                return SentRun(confirmed, sent.error)
        return SentRun(confirmed)

    async def _send(self, topic: str, messages: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        """Send messages that have the same key, or no key."""
        try:
            sender = await self._sender(topic, messages[0].key)
            return await sender.send(messages, holds_lease)
        except Exception as error:  # noqa: BLE001 - the forwarder decides by the error
            return SentRun(0, self.translate(error))

    async def _sender(self, topic: str, key: str | None) -> "_PartitionSender":
        self._missing.check(topic)
        try:
            partitions = await self.partitions(topic)
        except UnknownTopicOrPartitionError as error:
            raise self.note_missing(topic) from error
        if key is None:
            partition = partitions[next(self._round_robin) % len(partitions)]
        else:
            partition = self._partition_of(key.encode(), partitions, partitions)
        if (topic, partition) not in self._senders:
            self._senders[topic, partition] = _PartitionSender(self, topic, partition)
        return self._senders[topic, partition]


@dataclass(slots=True, eq=False)
class _PendingRun:
    """Messages that one caller wants sent in order, and how far that is done."""

    messages: Sequence[Outgoing]
    holds_lease: HoldsLease
    confirmed: int = 0
    error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether all messages are confirmed, or one has failed."""
        return self.error is not None or self.confirmed == len(self.messages)

    @property
    def left(self) -> Sequence[Outgoing]:
        """The messages that are not confirmed."""
        return self.messages[self.confirmed :]


class _PartitionSender:
    """Sends batches to one partition, one after the other; Kafka accepts a batch whole or not at all.

    The caller whose turn it is sends the messages of all waiting callers, so a batch holds those of many keys.
    """

    def __init__(self, producer: BatchProducer, topic: str, partition: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._turn = asyncio.Lock()
        self._waiting: deque[_PendingRun] = deque()
        self._max_bytes = producer.max_batch_bytes

    async def send(self, messages: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        """Send messages in order; those behind one that fails are not sent."""
        run = _PendingRun(messages, holds_lease)
        self._waiting.append(run)
        try:
            async with self._turn:
                while not run.done:
                    await self._send_batch()
        finally:
            if run in self._waiting:
                self._waiting.remove(run)
        return SentRun(run.confirmed, run.error)

    async def _send_batch(self) -> None:
        """Send as many of the waiting messages as one batch holds."""
        counts: dict[_PendingRun, int] = {}
        try:
            batch = self._producer.new_batch()
            counts = self._fill(batch)
            if counts:
                await self._producer.send_batch(batch, self._topic, self._partition)
        except Exception as error:  # noqa: BLE001 - the forwarder decides by the error
            of_one = isinstance(error, RefusedError) and not isinstance(error, MissingTopicError)
            if of_one and batch.record_count() > 1:
                await self._send_singly(counts, batch.size())
            else:
                for run in counts or self._waiting:  # without counts there is no connection, for any of them
                    run.error = error
        else:
            for run, number in counts.items():
                run.confirmed += number
        self._waiting = deque(run for run in self._waiting if not run.done)

    async def _send_singly(self, counts: Mapping[_PendingRun, int], size: int) -> None:
        """Send each message of a refused batch alone, so that only the one that Kafka refuses fails."""
        self._max_bytes = max(size // 2, _SMALLEST_BATCH_BYTES)
        for run, number in counts.items():
            for message in run.left[:number]:
                try:
                    batch = self._producer.new_batch()
                    append(batch, message)
                    await self._producer.send_batch(batch, self._topic, self._partition)
                except Exception as error:  # noqa: BLE001 - the forwarder decides by the error
                    run.error = error
                    break
                run.confirmed += 1

    def _fill(self, batch: Batch) -> dict[_PendingRun, int]:
        """Add messages to a batch while there is room; return how many of each run were added."""
        counts: dict[_PendingRun, int] = {}
        for run in self._waiting:
            if not run.holds_lease():
                run.error = LeaseLostError("The lease was lost before the message was sent.")
                continue
            for message in run.left:
                if (counts and batch.size() >= self._max_bytes) or not append(batch, message):
                    return counts
                counts[run] = counts.get(run, 0) + 1
        return counts
