"""What FastStream's OpenTelemetry middleware asks about a message."""

from collections.abc import Sequence
from typing import Any

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.response import PublishCommand

from faststream_outbox.message import OutboxDelivery
from faststream_outbox.metrics import MESSAGING_SYSTEM


class OutboxTelemetrySettingsProvider(
    TelemetrySettingsProvider[OutboxDelivery | Sequence[OutboxDelivery], PublishCommand],
):
    """Knows one message, or a batch of them; names attributes by the semantic conventions for messaging."""

    __slots__ = ("messaging_system",)

    def __init__(self) -> None:
        self.messaging_system = MESSAGING_SYSTEM

    def get_consume_attrs_from_message(
        self, msg: StreamMessage[OutboxDelivery | Sequence[OutboxDelivery]]
    ) -> dict[str, Any]:
        """Tell what a consumer's span says of its message."""
        raw = msg.raw_message
        rows = raw if isinstance(raw, Sequence) else (raw,)
        attributes: dict[str, Any] = {
            "messaging.system": self.messaging_system,
            "messaging.message.id": msg.message_id,
            "messaging.message.conversation_id": msg.correlation_id,
            "messaging.message.payload_size_bytes": sum(len(row.payload) for row in rows),
            MESSAGING_DESTINATION_PUBLISH_NAME: rows[0].queue,
        }
        if isinstance(raw, Sequence):
            attributes["messaging.batch.message_count"] = len(rows)
        else:
            # Tells the spans of a message that was tried again apart.
            attributes["messaging.outbox.deliveries_count"] = raw.deliveries_count
        return attributes

    def get_consume_destination_name(self, msg: StreamMessage[OutboxDelivery | Sequence[OutboxDelivery]]) -> str:
        """Tell from which queue a message came."""
        raw = msg.raw_message
        return raw[0].queue if isinstance(raw, Sequence) else raw.queue

    def get_publish_attrs_from_cmd(self, cmd: PublishCommand) -> dict[str, Any]:
        """Tell what a producer's span says of its message."""
        attributes = {
            "messaging.system": self.messaging_system,
            "messaging.destination.name": cmd.destination,
        }
        # Without one the message will be known by its row's id, which nobody knows yet.
        if cmd.correlation_id:
            attributes["messaging.message.conversation_id"] = cmd.correlation_id
        return attributes

    def get_publish_destination_name(self, cmd: PublishCommand) -> str:
        """Tell where a message goes, be it another broker's: a handler's answer to Kafka passes here too."""
        return cmd.destination
