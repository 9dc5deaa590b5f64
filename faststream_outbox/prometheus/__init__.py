"""FastStream's Prometheus metrics, for the outbox."""

from faststream_outbox.prometheus.middleware import OutboxMetricsSettingsProvider, OutboxPrometheusMiddleware

__all__ = ["OutboxMetricsSettingsProvider", "OutboxPrometheusMiddleware"]
