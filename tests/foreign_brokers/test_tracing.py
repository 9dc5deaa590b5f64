"""A trace goes on behind the other broker."""

from typing import Any

import pytest
from faststream.confluent.opentelemetry import KafkaTelemetryMiddleware as ConfluentTelemetryMiddleware
from faststream.kafka.opentelemetry import KafkaTelemetryMiddleware
from faststream.nats.opentelemetry import NatsTelemetryMiddleware
from faststream.rabbit.opentelemetry import RabbitTelemetryMiddleware
from faststream.redis.opentelemetry import RedisTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from faststream_outbox.opentelemetry import OutboxTelemetryMiddleware
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.foreign_brokers.endpoints import Endpoint
from tests.waiting import until

MIDDLEWARES: dict[str, Any] = {
    "kafka": KafkaTelemetryMiddleware,
    "confluent": ConfluentTelemetryMiddleware,
    "rabbit": RabbitTelemetryMiddleware,
    "jetstream": NatsTelemetryMiddleware,
    "redis stream": RedisTelemetryMiddleware,
}


@pytest.mark.parametrize(("endpoint", "middleware"), MIDDLEWARES.items(), indirect=["endpoint"])
async def test_the_consumer_is_in_the_trace_of_the_publisher(
    postgres: PostgresBackend, endpoint: Endpoint, middleware: Any
) -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    broker = broker_on(postgres, middlewares=[OutboxTelemetryMiddleware(tracer_provider=tracers)])

    @endpoint.publisher(endpoint.broker())
    @broker.subscriber("q")
    async def handle(body: int) -> int:
        return body

    def span(name: str) -> Any:
        return next((each for each in exporter.get_finished_spans() if each.name == name), None)

    async with endpoint.listening(middleware(tracer_provider=tracers)) as messages, started(broker):
        with tracers.get_tracer("shop").start_as_current_span("request"):
            await publish(broker, postgres, 1)
        message = await messages.get()
        await until(lambda: span("q process") and span("request"))
        # Which of its names a broker takes for its destination is its own affair.
        await until(lambda: [each for each in _consumers(exporter) if each.name != "q process"])
    traces = {each.context.trace_id for each in _consumers(exporter)}
    assert traces == {span("request").context.trace_id}
    assert f"{traces.pop():032x}" in message.headers["traceparent"]


def _consumers(exporter: InMemorySpanExporter) -> list[Any]:
    return [each for each in exporter.get_finished_spans() if each.name.endswith(" process")]
