"""FastStream's OpenTelemetry spans and metrics, for the outbox."""

from faststream_outbox.opentelemetry.middleware import OutboxTelemetryMiddleware, OutboxTelemetrySettingsProvider

__all__ = ["OutboxTelemetryMiddleware", "OutboxTelemetrySettingsProvider"]
