"""Traces a message from where it is published, through the table, to its handler and what that publishes."""

from faststream.response import PublishCommand

try:
    from faststream.opentelemetry import TelemetryMiddleware
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider
except ImportError as error:
    raise ImportError("OutboxTelemetryMiddleware needs: pip install 'faststream-outbox[opentelemetry]'") from error

from faststream_outbox.opentelemetry.provider import OutboxTelemetrySettingsProvider


class OutboxTelemetryMiddleware(TelemetryMiddleware[PublishCommand]):
    """FastStream's spans and `messaging.…` metrics; the trace's context and its baggage travel in the row's headers.

    Example:
        broker = OutboxBroker(
            engine, outbox_table=outbox_table, middlewares=[OutboxTelemetryMiddleware(tracer_provider=tracer_provider)]
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
