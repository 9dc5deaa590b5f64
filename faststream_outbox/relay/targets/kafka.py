"""Apache Kafka, through aiokafka."""

from collections.abc import Awaitable
from typing import Any, ClassVar

from aiokafka import errors
from faststream.kafka import KafkaBroker
from faststream.kafka.response import KafkaPublishCommand
from faststream.response.publish_type import PublishType

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import OutageError, RefusedError
from faststream_outbox.relay.targets.broker import BrokerTarget
from faststream_outbox.relay.targets.topics import check_topic

_REFUSALS = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidTopicError,
    errors.UnknownTopicOrPartitionError,
    errors.TopicAuthorizationFailedError,
    errors.CorruptRecordException,
    errors.UnsupportedForMessageFormatError,
)


class KafkaTarget(BrokerTarget):
    """Topics. The key of a row is the key of its message, so a key has one partition and its order is kept there."""

    # An idempotent producer numbers what it sends to a partition, and Kafka takes nothing out of turn.
    gapless: ClassVar[bool] = True

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__(broker)
        if not broker._connection_kwargs.get("enable_idempotence"):  # noqa: SLF001 - FastStream does not tell it otherwise
            raise ValueError(
                "A relay keeps the order of keys and loses nothing only with an idempotent producer: "
                "KafkaBroker(…, enable_idempotence=True), which also waits for all replicas (acks='all')."
            )

    def check(self, destination: str) -> None:
        """Refuse what is no topic."""
        check_topic(destination)

    async def post(self, message: Outgoing) -> Awaitable[Any]:
        """Put a message into the producer's buffer."""
        command = KafkaPublishCommand(
            message.payload,
            topic=message.destination,
            key=None if message.key is None else message.key.encode(),
            headers=message.headers,
            correlation_id=message.correlation_id,
            no_confirm=True,
            _publish_type=PublishType.PUBLISH,
        )
        confirmation: Awaitable[Any] = await self.producer.publish(command)
        return confirmation

    def translate(self, error: Exception) -> Exception:
        """Tell outages and refusals from the rest."""
        if isinstance(error, _REFUSALS):
            return RefusedError(str(error) or type(error).__name__)
        if isinstance(error, errors.KafkaError | OSError):
            return OutageError(f"{type(error).__name__}: {error}")
        return error
