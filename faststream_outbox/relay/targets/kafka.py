"""Apache Kafka, through aiokafka."""

from collections.abc import Sequence
from itertools import cycle, groupby
from typing import Any

from aiokafka.errors import UnknownTopicOrPartitionError
from aiokafka.partitioner import DefaultPartitioner
from faststream.kafka import KafkaBroker

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import RefusedError, SentRun, StillOurs, Target
from faststream_outbox.relay.targets.kafka_lane import Lane
from faststream_outbox.relay.targets.kafka_producer import BatchProducer
from faststream_outbox.relay.targets.topics import MissingTopics, check_topic


class KafkaTarget(Target):
    """Topics. The key of a row is the key of its message, so a key has one partition and its order is kept there.

    It connects as the `KafkaBroker` would, with a producer of its own: that is idempotent and waits for all replicas,
    however the broker's is set up, and it may have to be replaced.
    """

    def __init__(self, broker: KafkaBroker) -> None:
        options: dict[str, Any] = broker._connection_kwargs  # noqa: SLF001 - FastStream does not tell it otherwise
        self._producer = BatchProducer(options, confirmed=self.confirmed)
        self._partition_of = options.get("partitioner") or DefaultPartitioner()
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._missing = MissingTopics()
        self._turns = cycle(range(1 << 20))

    def check(self, destination: str) -> None:
        """Refuse what is no topic."""
        check_topic(destination)

    async def start(self) -> None:
        """Connect."""
        await self._producer.start()

    async def stop(self) -> None:
        """Disconnect."""
        await self._producer.stop()

    async def alive(self) -> bool:
        """Ask Kafka which topics it has."""
        return await self._producer.answers()

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send all of a topic to one of its partitions, in turn; one that is refused stops none."""
        errors: dict[int, Exception | None] = {}
        numbered = sorted(enumerate(messages), key=lambda each: each[1].destination)
        for topic, group in groupby(numbered, key=lambda each: each[1].destination):
            left = list(group)
            while left:
                confirmed, error = await self._send(topic, [message for _, message in left], None, lambda: True)
                errors |= {number: None for number, _ in left[:confirmed]}
                if error is None:
                    break
                stopped = left[confirmed : confirmed + 1] if isinstance(error, RefusedError) else left[confirmed:]
                errors |= {number: error for number, _ in stopped}
                left = left[confirmed + len(stopped) :]
        return [errors[number] for number in range(len(messages))]

    async def send_run(self, run: Sequence[Outgoing], still_ours: StillOurs) -> SentRun:
        """Send the messages of a key as they stand, topic by topic where they go to several."""
        confirmed = 0
        for topic, group in groupby(run, key=lambda message: message.destination):
            messages = list(group)
            sent = await self._send(topic, messages, messages[0].key, still_ours)
            confirmed += sent.confirmed
            if sent.error is not None:
                return SentRun(confirmed, sent.error)
        return SentRun(confirmed)

    async def _send(self, topic: str, messages: Sequence[Outgoing], key: str | None, still_ours: StillOurs) -> SentRun:
        try:
            lane = await self._lane(topic, key)
            return await lane.send(messages, still_ours)
        except Exception as error:  # noqa: BLE001 - whoever sent them decides
            return SentRun(0, self.translate(error))

    async def _lane(self, topic: str, key: str | None) -> Lane:
        self._missing.check(topic)
        try:
            partitions = await self._producer.partitions(topic)
        except UnknownTopicOrPartitionError as error:
            raise self._missing.refuse(topic) from error
        if key is None:
            partition = partitions[next(self._turns) % len(partitions)]
        else:
            partition = self._partition_of(key.encode(), partitions, partitions)
        where = topic, partition
        if where not in self._lanes:
            self._lanes[where] = Lane(self._producer, topic, partition)
        return self._lanes[where]

    def translate(self, error: Exception) -> Exception:
        """Tell outages and refusals from the rest."""
        return self._producer.translate(error)
