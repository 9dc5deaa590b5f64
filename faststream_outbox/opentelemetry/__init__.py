"""FastStream's OpenTelemetry spans and metrics, for the outbox."""

from faststream_outbox.opentelemetry.middleware import OutboxTelemetryMiddleware
from faststream_outbox.opentelemetry.provider import OutboxTelemetrySettingsProvider

__all__ = ["OutboxTelemetryMiddleware", "OutboxTelemetrySettingsProvider"]
