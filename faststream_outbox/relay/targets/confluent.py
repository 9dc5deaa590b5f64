"""Apache Kafka, through confluent-kafka."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from faststream.confluent import KafkaBroker

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import (
    ConnectionLostError,
    DestinationCheck,
    NotAcceptedError,
    OneByOneTarget,
    OutageError,
    RefusedError,
    UnexplainedError,
)
from faststream_outbox.relay.targets.confluent_client import MOST_LOSSES, Producer, UndeliveredError
from faststream_outbox.relay.targets.kafka_topics import (
    MissingTopics,
    SharedQuestion,
    check_topic,
    describe_partitions,
    not_allowed,
)

_ANSWER_SECONDS: Final = 3.0
# Kafka creates a topic sooner than this, if it creates topics by itself: one unknown after this time does not exist.
_TOPIC_SECONDS: Final = 5.0
_ACK_MS: Final = 5_000
# How long to wait between two questions whether Kafka has a topic.
_ASK_AGAIN_SECONDS: Final = 0.5

_MISSING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's own errors have such names
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - same
    }
)
_REFUSALS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    }
)
# What fails a message together with the batch that librdkafka put it in.
_OF_BATCHES: Final = _REFUSALS | {KafkaError._INVALID_DIFFERENT_RECORD}  # noqa: SLF001 - as above
# Answers about the connection or the whole cluster, not about one topic.
_OUTAGES: Final = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
# Answers that fit a bad message and a bad disk: who is at fault shows when the message is sent alone.
_UNEXPLAINED: Final = frozenset({KafkaError.UNKNOWN, KafkaError.INVALID_MSG})
_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001 - as above


class ConfluentTarget(OneByOneTarget):
    """Topics. The key of a row is the key of its message, so a key has one partition and keeps its order there.

    It connects with the options of the `KafkaBroker`, by its own producer, which is idempotent and waits for all
    replicas. librdkafka chooses the batches itself, and Kafka might refuse the batch of a key's first message and
    accept that of the second: therefore one message of each key is in flight at a time.

    librdkafka repeats a message for minutes if its partition has no leader, or too few replicas. So that the relay can
    have such messages back, others are then sent by another producer, and the first is closed with what is left in it.
    """

    check = staticmethod(check_topic)
    repeats_sends = True  # until Kafka confirms or the error is final

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__(broker)
        self._producer: Producer | None = None
        self._missing = MissingTopics()
        self._whether_missing = SharedQuestion(self._ask_about)
        self._why_silent = SharedQuestion(self._describe)
        # When each partition confirmed a message last.
        self._accepted_at: dict[tuple[str, int], float] = {}
        # Topics that the relay may not write to; librdkafka refuses them until it is made to ask Kafka again.
        self._forbidden: set[str] = set()
        # Topics that confirm nothing although Kafka answers, and the producers that were replaced because of them.
        self._silent: set[str] = set()
        self._retired: set[Producer] = set()
        # Sends a refused message again, without others in its batch; and the lock that keeps it so.
        self._single: ConfluentTarget | None = None
        self._single_turn = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    def use(self, broker: KafkaBroker) -> None:
        """Connect by the options of another FastStream broker from now on."""
        super().use(broker)
        given = broker.config.broker_config.connection_config.producer_config
        self._login_failure = ""
        self._on_error = given.get("error_cb")
        own = {
            "enable.idempotence": True,
            "acks": -1,
            "topic.metadata.propagation.max.ms": int(1000 * _TOPIC_SECONDS),
            "error_cb": self._remember_login_failure,
            # Kafka answers nothing else on a connection while a message waits for its replicas; 30 seconds by default.
            "request.timeout.ms": min(int(given.get("request.timeout.ms", _ACK_MS)), _ACK_MS),
        }
        self._config = {name: value for name, value in given.items() if name != "transactional.id"} | own

    def _remember_login_failure(self, error: KafkaError) -> None:
        """Keep why Kafka refused the login: librdkafka tells its callers only that no server answers."""
        if error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001 - as above
            self._login_failure = error.str()
        if self._on_error is not None:
            self._on_error(error)

    def twin(self) -> "ConfluentTarget":
        """Return a target with its own producer, which knows what this one has sent."""
        twin = ConfluentTarget(self.broker)
        twin.gives_up, twin._accepted_at, twin._missing = True, self._accepted_at, self._missing
        return twin

    async def start(self) -> None:
        """Connect, and check that Kafka answers."""
        if self._producer is None:
            self._producer = self._open()
        await self.alive()

    def _open(self) -> Producer:
        most_losses = 1 if self.gives_up else MOST_LOSSES
        return Producer(self._config, self.broker.config.broker_config.logger, most_losses=most_losses)

    async def stop(self) -> None:
        """Disconnect; rows that are not confirmed by now will be sent again by another relay or after a restart."""
        producer, self._producer = self._producer, None
        single, self._single = self._single, None
        for each in (single, producer, *self._retired):
            if each is not None:
                await each.stop()
        if self._closing:
            await asyncio.wait(self._closing)

    async def alive(self) -> bool:
        """Ask Kafka for its topics."""
        if self._producer is None:
            return False
        await asyncio.to_thread(self._usable().ask, None, _ANSWER_SECONDS)
        self._login_failure = ""
        return True

    def _usable(self) -> Producer:
        """Return the producer; replace one that has given up its messages."""
        if self._producer is None:
            raise OutageError("Kafka is not connected.")
        if self._producer.lost:
            self._replace(self._producer.stop())
        return self._producer

    def _replace(self, close: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Open another producer for the next messages, and close the present one meanwhile."""
        closing = asyncio.create_task(close)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._producer = self._open()
        return closing

    async def send(self, message: Outgoing) -> None:
        """Send a message; repeat a refused one alone, because Kafka refuses whole batches."""
        self._missing.check(message.destination)
        if message.destination in self._forbidden:
            await self._why_silent.answer(message.destination)  # librdkafka learns from the answer what is allowed
        try:
            await self.deliver(message)
        except KafkaException as error:
            code = error.args[0].code()
            if code in _MISSING:
                found = await self._whether_missing.answer(message.destination)
                raise type(found)(str(found)) from error
            if code not in _OF_BATCHES:
                raise
            await self._deliver_alone(message)

    async def deliver(self, message: Outgoing) -> None:
        """Send a message once, and wait until it is confirmed."""
        producer = self._usable()
        try:
            sending = producer.send(message)
            await self.wait_confirmed(sending, message.destination)
            self._accepted_at[message.destination, sending.result()] = time.monotonic()
            self._forbidden.discard(message.destination)
            self._silent.discard(message.destination)
        except KafkaException as error:
            code = error.args[0].code()
            if code in _PURGED and producer.lost:
                raise ConnectionLostError("The connection was lost again and again.") from error
            if code in _PURGED and producer.retired:
                why = await self._why_silent.answer(message.destination)
                raise self.not_confirmed(message.destination, why) from error
            if code in _UNEXPLAINED and isinstance(error, UndeliveredError):
                accepted_at = self._accepted_at.get((message.destination, error.partition), 0.0)
                raise UnexplainedError(error.args[0].str(), accepted_at=accepted_at) from error
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self._forbidden.add(message.destination)
                raise not_allowed(message.destination) from error
            raise

    async def _deliver_alone(self, message: Outgoing) -> None:
        """Send a message without others in its batch; others in other batches are not held up."""
        async with self._single_turn:
            if self._single is None:
                self._single = self.twin()
            try:
                await self._single.start()
                await self._single.deliver(message)
            except OutageError:
                single, self._single = self._single, None
                await single.stop()
                raise

    async def _ask_about(self, topic: str) -> Exception:
        """Return what a missing topic means: Kafka does not have it, or does not find it at this moment."""
        until = time.monotonic() + _TOPIC_SECONDS
        while True:
            answer: Any = await asyncio.to_thread(self._usable().ask, topic, _ANSWER_SECONDS)
            error = answer.topics[topic].error
            if error is None:
                return NotAcceptedError(f"Kafka has topic {topic}, but did not find it when a message was sent.")
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return not_allowed(topic)
            if error.code() not in _MISSING:
                return NotAcceptedError(error.str())
            if time.monotonic() > until:
                return self._missing.add(topic)
            await asyncio.sleep(_ASK_AGAIN_SECONDS)

    async def look_up(self, destination: str) -> DestinationCheck:
        """Ask Kafka whether it has a topic."""
        return await asyncio.to_thread(self._usable().look_up, destination, _ANSWER_SECONDS)

    async def explain_silence(self, destination: str) -> str:
        """Return which partitions of a topic lack a leader or replicas; if some do, have its messages back."""
        why = await self._why_silent.answer(destination)
        if why and not self.gives_up:
            for each in self._retired:
                each.given_up.add(destination)
            if destination not in self._silent:
                self._silent.add(destination)
                self._retire(destination)
        return why

    def _retire(self, topic: str) -> None:
        """Send the next messages by another producer; close this one when only messages for the topic are left."""
        producer = self._producer
        if producer is None or producer.lost:
            return
        self._retired.add(producer)
        closing = self._replace(producer.close_without(topic))
        closing.add_done_callback(lambda _: self._retired.discard(producer))

    async def _describe(self, topic: str) -> str:
        try:
            answer: Any = await asyncio.to_thread(self._usable().ask, topic, _ANSWER_SECONDS)
        except (KafkaException, OutageError):
            return ""
        partitions = answer.topics[topic].partitions.values()
        return describe_partitions((each.id, each.leader, each.replicas, each.isrs) for each in partitions)

    def translate(self, error: Exception) -> Exception:
        """Return the `OutageError` or `RefusedError` that librdkafka's error means."""
        if isinstance(error, BufferError):
            return OutageError("The producer's buffer is full.")
        if not isinstance(error, KafkaException):
            return error
        reason: Any = error.args[0]
        code = reason.code()
        if code in _REFUSALS:
            return RefusedError(reason.str())
        answered = code > 0 and code not in _OUTAGES
        if answered or code == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001 - as above
            return NotAcceptedError(reason.str())
        return OutageError(self._login_failure or reason.str())
