"""Apache Kafka, through confluent-kafka."""

import asyncio
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from faststream.confluent import KafkaBroker
from faststream.confluent.helpers import AsyncConfluentProducer

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import OneByOneTarget, OutageError, RefusedError, SharedLock
from faststream_outbox.relay.targets.kafka_topics import MissingTopics, check_topic

_ANSWER_SECONDS: Final = 3.0
# Kafka creates a topic sooner than this, if it creates topics by itself: one unknown after this time does not exist.
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
    """Topics. The key of a row is the key of its message, so a key has one partition and keeps its order there.

    It connects with the options of the `KafkaBroker`, by its own producer, which is idempotent and waits for all
    replicas. librdkafka chooses the batches itself, and Kafka might refuse the batch of a key's first message and
    accept that of the second: therefore one message of each key is in flight at a time.
    """

    check = staticmethod(check_topic)
    repeats_sends = True  # until Kafka confirms or the error is final

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__(broker)
        self._producer: AsyncConfluentProducer | None = None
        self._missing = MissingTopics()
        self._lock = SharedLock()

    def use(self, broker: KafkaBroker) -> None:
        """Connect by the options of another FastStream broker from now on."""
        super().use(broker)
        given = broker.config.broker_config.connection_config.producer_config
        self._login_failure = ""
        self._on_error = given.get("error_cb")
        own = {
            "enable.idempotence": True,
            "acks": -1,
            "topic.metadata.propagation.max.ms": _TOPIC_MS,
            "error_cb": self._remember_login_failure,
        }
        self._config = {name: value for name, value in given.items() if name != "transactional.id"} | own

    def _remember_login_failure(self, error: KafkaError) -> None:
        """Keep why Kafka refused the login: librdkafka tells its callers only that no server answers."""
        if error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001 - as above
            self._login_failure = error.str()
        if self._on_error is not None:
            self._on_error(error)

    async def start(self) -> None:
        """Connect, and check that Kafka answers."""
        if self._producer is None:
            config: Any = SimpleNamespace(producer_config=self._config)
            self._producer = AsyncConfluentProducer(logger=self.broker.config.broker_config.logger, config=config)
        await self.alive()

    async def stop(self) -> None:
        """Disconnect; rows that are not confirmed by now will be sent again by another relay or after a restart."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.producer.purge()
            await producer.stop()

    async def alive(self) -> bool:
        """Ask Kafka for its topics."""
        if self._producer is None:
            return False
        await asyncio.to_thread(self._producer.producer.list_topics, timeout=_ANSWER_SECONDS)
        self._login_failure = ""
        return True

    async def send(self, message: Outgoing) -> None:
        """Send a message; repeat a refused one alone, because Kafka refuses whole batches."""
        self._missing.check(message.destination)
        try:
            async with self._lock.shared():
                await self._deliver(message)
        except KafkaException as error:
            code = error.args[0].code()
            if code in _MISSING:
                raise self._missing.add(message.destination) from error
            if code not in _REFUSALS:
                raise
            async with self._lock.exclusive():
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
        await self.wait_confirmed(confirmation, message.destination)

    def translate(self, error: Exception) -> Exception:
        """Return the `OutageError` or `RefusedError` that librdkafka's error means."""
        if isinstance(error, BufferError):
            return OutageError("The producer's buffer is full.")
        if not isinstance(error, KafkaException):
            return error
        reason: Any = error.args[0]
        if reason.code() in _REFUSALS:
            return RefusedError(reason.str())
        return OutageError(self._login_failure or reason.str())
