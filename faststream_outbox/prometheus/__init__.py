"""FastStream's Prometheus metrics, for the outbox."""

from faststream_outbox.prometheus.middleware import OutboxPrometheusMiddleware
from faststream_outbox.prometheus.provider import OutboxMetricsSettingsProvider

__all__ = ["OutboxMetricsSettingsProvider", "OutboxPrometheusMiddleware"]
