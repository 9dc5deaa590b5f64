"""What FastStream's Prometheus middleware asks about a message."""

from collections.abc import Sequence

from faststream.message import StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.response import PublishCommand

from faststream_outbox.message import OutboxDelivery
from faststream_outbox.metrics import MESSAGING_SYSTEM


class OutboxMetricsSettingsProvider(
    MetricsSettingsProvider[OutboxDelivery | Sequence[OutboxDelivery], PublishCommand],
):
    """Knows one message, or a batch of them."""

    __slots__ = ("messaging_system",)

    def __init__(self) -> None:
        self.messaging_system = MESSAGING_SYSTEM

    def get_consume_attrs_from_message(
        self, msg: StreamMessage[OutboxDelivery | Sequence[OutboxDelivery]]
    ) -> ConsumeAttrs:
        """Tell a message's queue and size."""
        raw = msg.raw_message
        rows = raw if isinstance(raw, Sequence) else (raw,)
        return {
            "destination_name": rows[0].queue,
            "message_size": sum(len(row.payload) for row in rows),
            "messages_count": len(rows),
        }

    def get_publish_destination_name_from_cmd(self, cmd: PublishCommand) -> str:
        """Tell where a message goes, be it another broker's: a handler's answer to Kafka passes here too."""
        return cmd.destination
