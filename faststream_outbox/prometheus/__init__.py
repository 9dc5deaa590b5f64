"""FastStream's Prometheus metrics for the outbox: counts and times of published and handled messages."""

from collections.abc import Callable, Sequence
from typing import Any

from faststream.message import StreamMessage
from faststream.response import PublishCommand

from faststream_outbox._faststream import EMPTY
from faststream_outbox._installation import needs_extra
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.metrics import MESSAGING_SYSTEM

try:
    from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider, PrometheusMiddleware
    from prometheus_client import CollectorRegistry
except ImportError as error:
    raise ImportError(needs_extra("OutboxPrometheusMiddleware", "prometheus")) from error

__all__ = ["OutboxMetricsSettingsProvider", "OutboxPrometheusMiddleware"]

_Raw = OutboxDelivery | Sequence[OutboxDelivery]


class OutboxMetricsSettingsProvider(MetricsSettingsProvider[_Raw, PublishCommand]):
    """Answers what FastStream's Prometheus middleware asks about a message or a batch."""

    messaging_system = MESSAGING_SYSTEM

    def get_consume_attrs_from_message(self, msg: StreamMessage[_Raw]) -> ConsumeAttrs:
        """Return the queue, size and number of the messages."""
        raw = msg.raw_message
        rows = raw if isinstance(raw, Sequence) else (raw,)
        return {
            "destination_name": rows[0].queue,
            "message_size": sum(len(row.payload) for row in rows),
            "messages_count": len(rows),
        }

    def get_publish_destination_name_from_cmd(self, cmd: PublishCommand) -> str:
        """Return the destination, which may be another broker's: a handler's answer to Kafka passes here too."""
        return cmd.destination


class OutboxPrometheusMiddleware(PrometheusMiddleware[_Raw, PublishCommand]):
    """FastStream's `faststream_received_…` and `faststream_published_…` metrics, with `broker="outbox"`.

    Give a `PrometheusRecorder` beside it `include_bus_metrics=False`, otherwise both count these.

    Args:
        registry: Where the metrics are registered.
        app_name: The label `app_name`; by default FastStream's.
        metrics_prefix: How the names of the metrics begin.
        received_messages_size_buckets: The buckets of the histogram of message sizes.
        custom_labels: More labels, each with a value or a function of the message.

    Example:
        broker = OutboxBroker(
            engine,
            outbox_table=outbox_table,
            dlq_table=dlq_table,
            middlewares=[OutboxPrometheusMiddleware(registry=registry)],
        )

    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: OutboxMetricsSettingsProvider(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )
