"""FastStream's OpenTelemetry spans and metrics for the outbox: a trace leads through the table to the handler."""

from collections.abc import Sequence
from typing import Any

from faststream.message import StreamMessage
from faststream.response import PublishCommand

from faststream_outbox._installation import needs_extra
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.metrics import MESSAGING_SYSTEM

try:
    from faststream.opentelemetry import TelemetryMiddleware, TelemetrySettingsProvider
    from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider
except ImportError as error:
    raise ImportError(needs_extra("OutboxTelemetryMiddleware", "opentelemetry")) from error

__all__ = ["OutboxTelemetryMiddleware", "OutboxTelemetrySettingsProvider"]

_Raw = OutboxDelivery | Sequence[OutboxDelivery]


class OutboxTelemetrySettingsProvider(TelemetrySettingsProvider[_Raw, PublishCommand]):
    """Answers what FastStream's OpenTelemetry middleware asks about a message or a batch.

    Attributes have the names of the semantic conventions for messaging.
    """

    messaging_system = MESSAGING_SYSTEM

    def get_consume_attrs_from_message(self, msg: StreamMessage[_Raw]) -> dict[str, Any]:
        """Return the attributes of a consumer's span."""
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
            # Distinguishes the spans of a message that was delivered several times.
            attributes["messaging.outbox.deliveries_count"] = raw.deliveries_count
        return attributes

    def get_consume_destination_name(self, msg: StreamMessage[_Raw]) -> str:
        """Return the queue of a message."""
        raw = msg.raw_message
        return raw[0].queue if isinstance(raw, Sequence) else raw.queue

    def get_publish_attrs_from_cmd(self, cmd: PublishCommand) -> dict[str, Any]:
        """Return the attributes of a producer's span."""
        attributes = {
            "messaging.system": self.messaging_system,
            "messaging.destination.name": cmd.destination,
        }
        # Without a correlation id the message uses its row's id, which does not exist yet.
        if cmd.correlation_id:
            attributes["messaging.message.conversation_id"] = cmd.correlation_id
        return attributes

    def get_publish_destination_name(self, cmd: PublishCommand) -> str:
        """Return the destination, which may be another broker's: a handler's answer to Kafka passes here too."""
        return cmd.destination


class OutboxTelemetryMiddleware(TelemetryMiddleware[PublishCommand]):
    """FastStream's spans and `messaging.…` metrics; the row's headers carry the trace context and its baggage.

    Args:
        tracer_provider: Makes the spans; by default the global one.
        meter_provider: Makes the meter of the metrics. Without it and `meter` there are no metrics.
        meter: The meter, if you have one.
        include_messages_counters: Whether messages are counted too; only with metrics.

    Example:
        broker = OutboxBroker(
            engine,
            outbox_table=outbox_table,
            dlq_table=dlq_table,
            middlewares=[OutboxTelemetryMiddleware(tracer_provider=tracer_provider)],
        )

    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        # On, as in FastStream's Kafka, NATS and Redis.
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: OutboxTelemetrySettingsProvider(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
