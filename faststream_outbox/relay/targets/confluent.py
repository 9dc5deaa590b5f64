"""Apache Kafka, through confluent-kafka."""

import asyncio
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from faststream.confluent import KafkaBroker
from faststream.confluent.helpers import AsyncConfluentProducer

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import OutageError, RefusedError
from faststream_outbox.relay.targets.gate import Gate
from faststream_outbox.relay.targets.one_by_one import OneByOneTarget
from faststream_outbox.relay.targets.topics import MissingTopics, check_topic

_ANSWER_SECONDS: Final = 3.0
# A topic that Kafka does not know after this time does not exist: it makes those soon that it makes by itself.
_TOPIC_MS: Final = 5_000

_MISSING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's own errors have such names
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - same
    }
)
_REFUSALS: Final = _MISSING | {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_MSG,
    KafkaError.POLICY_VIOLATION,
}


class ConfluentTarget(OneByOneTarget):
    """Topics. The key of a row is the key of its message, so a key has one partition and its order is kept there.

    It connects as the `KafkaBroker` would, with a producer of its own that is idempotent and waits for all replicas.
    librdkafka fills batches as it likes, and of two messages of a key Kafka might refuse the first batch and take the
    second: so of each key one is on its way at a time.
    """

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__(broker)
        given = broker.config.broker_config.connection_config.producer_config
        own = {"enable.idempotence": True, "acks": -1, "topic.metadata.propagation.max.ms": _TOPIC_MS}
        self._config = {name: value for name, value in given.items() if name != "transactional.id"} | own
        self._producer: AsyncConfluentProducer | None = None
        self._missing = MissingTopics()
        self._gate = Gate()

    def check(self, destination: str) -> None:
        """Refuse what is no topic."""
        check_topic(destination)

    async def start(self) -> None:
        """Connect, and see whether somebody answers."""
        if self._producer is None:
            config: Any = SimpleNamespace(producer_config=self._config)
            self._producer = AsyncConfluentProducer(logger=self.broker.config.broker_config.logger, config=config)
        await self.alive()

    async def stop(self) -> None:
        """Disconnect; what is not confirmed by now is sent again by somebody."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.producer.purge()
            await producer.stop()

    async def alive(self) -> bool:
        """Ask Kafka which topics it has."""
        if self._producer is None:
            return False
        await asyncio.to_thread(self._producer.producer.list_topics, timeout=_ANSWER_SECONDS)
        return True

    @property
    def _lost_after(self) -> float | None:
        """Never: librdkafka sends a message until it is there, or has a final error."""
        return None

    async def send(self, message: Outgoing) -> None:
        """Send a message; one that was refused among others is tried alone, because Kafka refuses batches."""
        self._missing.check(message.destination)
        try:
            async with self._gate.together():
                await self._deliver(message)
        except KafkaException as error:
            code = error.args[0].code()
            if code in _MISSING:
                raise self._missing.refuse(message.destination) from error
            if code not in _REFUSALS:
                raise
            async with self._gate.alone():
                await self._deliver(message)

    async def _deliver(self, message: Outgoing) -> None:
        if self._producer is None:
            raise OutageError("Kafka is not connected.")
        headers: list[tuple[str, str | bytes]] = [(name, value.encode()) for name, value in message.headers.items()]
        confirmation: Any = await self._producer.send(
            message.destination,
            value=message.payload,
            key=None if message.key is None else message.key.encode(),
            headers=headers,
            no_confirm=True,
        )
        await self.confirmed(confirmation, message.destination)

    def translate(self, error: Exception) -> Exception:
        """Tell outages and refusals from the rest."""
        if isinstance(error, BufferError):
            return OutageError("The producer's buffer is full.")
        if not isinstance(error, KafkaException):
            return error
        what: Any = error.args[0]
        return RefusedError(what.str()) if what.code() in _REFUSALS else OutageError(what.str())
