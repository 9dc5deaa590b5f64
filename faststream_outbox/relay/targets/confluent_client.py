"""A producer of librdkafka that can give its messages up, all of them or those of some topics."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import admin as confluent_admin
from faststream.confluent.helpers import AsyncConfluentProducer

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import DestinationCheck, NotAcceptedError
from faststream_outbox.relay.targets.kafka_topics import AUTO_CREATE, topic_forbidden, topic_missing, topic_there

# How often an open connection must be lost while a message waits, until all messages are given up. While Kafka is down
# no connection is opened, so an outage is one loss, and librdkafka repeats the messages without duplicating them.
MOST_LOSSES: Final = 3
# What librdkafka writes of a connection that was open; no callback says it.
_LOSS: Final = ("Disconnected", "in state UP")
# The level of such a record, as librdkafka counts levels.
_LOSS_LEVEL: Final = 6
# How long to wait between two looks at what a producer still sends that is to be closed.
_BETWEEN_LOOKS: Final = 0.2
_NO_OFFSET: Final = "Kafka gave no offset for the message, and may not have stored it: it is sent again."


_admin: Any = confluent_admin  # whose types leave out what it imports


class UndeliveredError(KafkaException):
    """A message that Kafka did not accept."""

    def __init__(self, error: KafkaError, partition: int) -> None:
        super().__init__(error)
        self.partition = partition


class _Sent(NamedTuple):
    """A message without an answer: its topic, and how many losses there were when it was sent."""

    topic: str
    losses: int


class Producer:
    """Sends messages; each is confirmed with the number of its partition."""

    def __init__(self, config: Mapping[str, Any], logger: Any, *, most_losses: int = MOST_LOSSES) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = dict(config)
        self._most_losses = most_losses
        self._losses = 0
        self._waiting: dict[asyncio.Future[int], _Sent] = {}
        # Whether the messages were given up; nothing can be sent any more.
        self.lost = False
        # Whether it sends nothing more, and is closed; and the topics for whose messages that does not wait.
        self.retired = False
        self.given_up: set[str] = set()
        level = int(config.get("log_level", _LOSS_LEVEL))
        says_losses = level >= _LOSS_LEVEL and str(config.get("log.connection.close", True)).lower() == "true"
        own: Any = SimpleNamespace(
            producer_config={**config, "log_level": max(level, _LOSS_LEVEL), "log.connection.close": True}
        )
        self._log = _LossLog(logger, partial(self._loop.call_soon_threadsafe, self._note_loss), says_losses=says_losses)
        log: Any = self._log
        self._client = AsyncConfluentProducer(logger=log, config=own)

    def send(self, message: Outgoing) -> "asyncio.Future[int]":
        """Send a message."""
        future: asyncio.Future[int] = self._loop.create_future()

        def on_delivery(error: KafkaError | None, sent: Any) -> None:
            self._loop.call_soon_threadsafe(self._finish, future, error, sent)

        headers: Any = [(name, value.encode()) for name, value in message.headers.items()]
        self._client.producer.produce(
            message.destination,
            value=message.payload,
            key=None if message.key is None else message.key.encode(),
            headers=headers,
            on_delivery=on_delivery,
        )
        self._waiting[future] = _Sent(message.destination, self._losses)
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: "asyncio.Future[int]") -> None:
        del self._waiting[future]
        if not future.cancelled():
            future.exception()  # asyncio would complain of one that nobody waits for any more, after a stop

    def _finish(self, future: "asyncio.Future[int]", error: KafkaError | None, message: Any) -> None:
        if future.done():  # it was cancelled
            return
        partition = -1 if message is None else message.partition()
        if error is not None:
            future.set_exception(UndeliveredError(error, partition))
        elif message.offset() is None:
            # Kafka took its number for one that it has seen. In a topic that was created anew, that number is another
            # message's: of two batches on their way, Kafka accepts the second first, and drops the first.
            future.set_exception(NotAcceptedError(_NO_OFFSET))
        else:
            future.set_result(partition)

    def _note_loss(self) -> None:
        self._losses += 1
        if any(self._losses - sent.losses >= self._most_losses for sent in self._waiting.values()):
            self.lost = True
            self._client.producer.purge()

    def ask(self, topic: str | None, seconds: float) -> Any:
        """Return what Kafka says of a topic, or of all; call it in a thread."""
        if topic is None:
            return self._client.producer.list_topics(timeout=seconds)
        return self._client.producer.list_topics(topic, timeout=seconds)

    def look_up(self, topic: str, seconds: float) -> DestinationCheck:
        """Ask Kafka whether it has a topic; call it in a thread. Asking this way does not create it."""
        admin = _admin.AdminClient(self._config)
        future = admin.describe_topics(TopicCollection([topic]), request_timeout=seconds)[topic]
        try:
            future.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return topic_forbidden(topic)
            if code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return topic_missing(topic, creates_topics=_creates_topics(admin, seconds))
        return topic_there(topic)

    async def close_without(self, topic: str) -> None:
        """Disconnect when all messages are confirmed but those for this topic, or others of `given_up`, which fail.

        They fail while librdkafka has them in its queue, and not while Kafka may be storing them.
        """
        self.retired = True
        self.given_up.add(topic)
        while self._waiting:
            if all(sent.topic in self.given_up for sent in self._waiting.values()):
                self._client.producer.purge(in_flight=False)
            await asyncio.sleep(_BETWEEN_LOOKS)
        await self._client.stop()

    async def stop(self) -> None:
        """Disconnect; what was not confirmed fails."""
        self._client.producer.purge()
        await self._client.stop()


def _creates_topics(admin: Any, seconds: float) -> bool:
    """Return whether Kafka creates topics by itself; False if the relay may not ask."""
    broker = next(iter(admin.list_topics(timeout=seconds).brokers))
    resource = _admin.ConfigResource(_admin.ConfigResource.Type.BROKER, str(broker))
    [asked] = admin.describe_configs([resource], request_timeout=seconds).values()
    try:
        return bool(asked.result()[AUTO_CREATE].value == "true")
    except KafkaException:
        return False


class _LossLog:
    """Receives librdkafka's log records, in the place of FastStream's logger, and passes them on to it."""

    def __init__(self, state: Any, on_loss: Any, *, says_losses: bool) -> None:
        self._state = state
        self._on_loss = on_loss
        self._says_losses = says_losses

    @property
    def logger(self) -> "_LossLog":
        """What FastStream asks for, twice, to find the logger."""
        return self

    def handle(self, record: logging.LogRecord) -> None:
        """Count a lost connection, and pass the record on."""
        loss = all(part in record.getMessage() for part in _LOSS)
        if loss:
            self._on_loss()
        real: Any = getattr(self._state.logger, "logger", None)
        if hasattr(real, "handle") and (self._says_losses or not loss):
            real.handle(record)
