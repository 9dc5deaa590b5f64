"""Counts and times what the broker publishes and its handlers do, as FastStream's other brokers do."""

from collections.abc import Callable, Sequence
from typing import Any

from faststream.response import PublishCommand

from faststream_outbox._faststream import EMPTY
from faststream_outbox.message import OutboxDelivery

try:
    from faststream.prometheus import PrometheusMiddleware
    from prometheus_client import CollectorRegistry
except ImportError as error:
    raise ImportError("OutboxPrometheusMiddleware needs: pip install 'faststream-outbox[prometheus]'") from error

from faststream_outbox.prometheus.provider import OutboxMetricsSettingsProvider


class OutboxPrometheusMiddleware(PrometheusMiddleware[OutboxDelivery | Sequence[OutboxDelivery], PublishCommand]):
    """FastStream's `faststream_received_…` and `faststream_published_…` metrics, with `broker="outbox"`.

    A `PrometheusRecorder` beside it takes `include_bus_metrics=False`, or these would be counted twice.

    Example:
        broker = OutboxBroker(
            engine, outbox_table=outbox_table, middlewares=[OutboxPrometheusMiddleware(registry=registry)]
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
