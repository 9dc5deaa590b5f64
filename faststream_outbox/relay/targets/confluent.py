"""Apache Kafka, through confluent-kafka."""

from collections.abc import Awaitable
from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException
from faststream.confluent import KafkaBroker
from faststream.confluent.response import KafkaPublishCommand
from faststream.response.publish_type import PublishType

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import OutageError, RefusedError
from faststream_outbox.relay.targets.broker import BrokerTarget
from faststream_outbox.relay.targets.topics import check_topic

_REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's own errors have such names
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - same
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
}


class ConfluentTarget(BrokerTarget):
    """Topics. The key of a row is the key of its message, so a key has one partition and its order is kept there."""

    # With gapless guarantee nothing of a partition is taken behind a message that failed.
    gapless: ClassVar[bool] = True

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__(broker)
        given = broker.config.broker_config.connection_config.producer_config
        if given.get("enable.idempotence") not in (True, "true"):
            raise ValueError(
                "A relay keeps the order of keys and loses nothing only with an idempotent producer: "
                'KafkaBroker(…, config={"enable.idempotence": True}).'
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
        if isinstance(error, BufferError):
            return OutageError("The producer's buffer is full.")
        if not isinstance(error, KafkaException):
            return error
        what: Any = error.args[0]
        return RefusedError(what.str()) if what.code() in _REFUSALS else OutageError(what.str())
