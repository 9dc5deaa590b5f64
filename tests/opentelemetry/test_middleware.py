"""A trace goes with a message: into its row, to its handler, and on to what that publishes."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from faststream.opentelemetry import Baggage, CurrentBaggage, CurrentSpan
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.envelope import outbox_id
from faststream_outbox.opentelemetry import OutboxTelemetryMiddleware
from tests.backends import PostgresBackend
from tests.metrics.brokers import SOON, Events, make_broker, publish, running
from tests.metrics.readers import Meters


class Traced:
    """A broker that is traced, and its spans."""

    def __init__(self, postgres: PostgresBackend) -> None:
        self.events, self.meters = Events(), Meters()
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        middleware = OutboxTelemetryMiddleware(tracer_provider=self.tracers, meter_provider=self.meters.provider)
        self.broker = make_broker(postgres, self.events, middlewares=[middleware])

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        [span] = self.spans(name)
        return span


@pytest.fixture
def traced(postgres: PostgresBackend, caplog: pytest.LogCaptureFixture) -> Iterator[Traced]:
    traced = Traced(postgres)
    with caplog.at_level(logging.WARNING, logger="opentelemetry"):
        yield traced
    # OpenTelemetry does not raise at an attribute that it refuses.
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


async def test_a_chain_is_one_trace(traced: Traced, postgres: PostgresBackend) -> None:
    broker, tracer = traced.broker, traced.tracers.get_tracer("shop")
    seen: dict[str, Any] = {}

    @broker.subscriber("orders")
    @broker.publisher("next")
    async def handle(number: int, message: OutboxMessage, span: CurrentSpan) -> int:
        seen["headers"], seen["row"] = message.headers, message.raw_message
        seen["span"] = span.get_span_context().span_id
        return number

    @broker.subscriber("next")
    async def last(_number: int, message: OutboxMessage) -> None:
        seen["next"] = message.correlation_id

    async with running(broker):
        with tracer.start_as_current_span("request"):
            await publish(postgres, broker, [1])
        await traced.events.wait_for("acked", 1, queue="next")

    request, create = traced.span("request"), traced.span("orders create")
    published, processed = traced.span("orders publish"), traced.span("orders process")
    passed_on, ended = traced.span("next publish"), traced.span("next process")
    chain = (request, create, published, processed, passed_on, ended)
    assert {trace_of(span) for span in chain} == {trace_of(request)}
    assert parent_of(create) == id_of(request)
    assert parent_of(published) == id_of(create)
    assert parent_of(processed) == id_of(create), "through the row's headers"
    assert parent_of(passed_on) == id_of(processed)
    assert parent_of(ended) == id_of(create), "as with FastStream's other brokers"
    assert seen["span"] == id_of(processed)
    assert f"{id_of(create):016x}" in seen["headers"]["traceparent"]

    row_id = str(seen["row"].id)
    assert dict(processed.attributes or {}) == {
        "messaging.system": "outbox",
        "messaging.message.id": row_id,
        "messaging.message.conversation_id": row_id,
        "messaging.message.payload_size_bytes": 1,
        "messaging.destination_publish.name": "orders",
        "messaging.outbox.deliveries_count": 1,
        "messaging.operation": "process",
    }
    assert dict(published.attributes or {}) == {
        "messaging.system": "outbox",
        "messaging.destination.name": "orders",
        "messaging.operation": "publish",
    }
    assert seen["next"] == outbox_id(seen["row"], source="outbox")
    assert dict(passed_on.attributes or {})["messaging.message.conversation_id"] == seen["next"]

    assert traced.meters.read("messaging.process.messages", "messaging.destination_publish.name") == {
        "orders": 1,
        "next": 1,
    }
    assert traced.meters.read("messaging.publish.messages", "messaging.destination.name") == {"orders": 1, "next": 1}


async def test_what_a_handler_publishes_itself_is_below_it(traced: Traced, postgres: PostgresBackend) -> None:
    broker = traced.broker

    @broker.subscriber("orders")
    async def handle(number: int) -> None:
        await publish(postgres, broker, [number], queue="next")

    @broker.subscriber("next")
    async def last(number: int) -> None: ...

    async with running(broker):
        await publish(postgres, broker, [1])
        await traced.events.wait_for("acked", 1, queue="next")
    create = traced.span("next create")
    assert parent_of(create) == id_of(traced.span("orders process"))
    assert parent_of(traced.span("next process")) == id_of(create)


async def test_every_attempt_is_a_span_of_the_same_trace(traced: Traced, postgres: PostgresBackend) -> None:
    @traced.broker.subscriber("orders", retry_strategy=SOON)
    async def handle(number: int, message: OutboxMessage) -> None:
        if message.raw_message.attempts_count == 0:
            raise ValueError(number)

    async with running(traced.broker):
        await publish(postgres, traced.broker, [1])
        await traced.events.wait_for("acked")
    first, second = traced.spans("orders process")
    create = traced.span("orders create")
    assert parent_of(first) == parent_of(second) == id_of(create)
    assert [dict(span.attributes or {})["messaging.outbox.deliveries_count"] for span in (first, second)] == [1, 2]
    assert [span.status.is_ok for span in (first, second)] == [False, True]


async def test_baggage_goes_along(traced: Traced, postgres: PostgresBackend) -> None:
    broker = traced.broker
    seen: dict[str, dict[str, Any]] = {}

    @broker.subscriber("orders")
    @broker.publisher("next")
    async def handle(number: int, baggage: CurrentBaggage) -> int:
        seen["orders"] = baggage.get_all()
        baggage.set("step", "one")
        return number

    @broker.subscriber("next")
    async def last(_number: int, baggage: CurrentBaggage) -> None:
        seen["next"] = baggage.get_all()

    async with running(broker):
        async with postgres.transaction() as session:
            headers = Baggage({"tenant": "acme"}).to_headers()
            await broker.publish(1, queue="orders", session=session, headers=headers, correlation_id="c")
        await traced.events.wait_for("acked", 1, queue="next")
    assert seen == {"orders": {"tenant": "acme"}, "next": {"tenant": "acme", "step": "one"}}
    attributes = dict(traced.span("orders publish").attributes or {})
    assert attributes["messaging.message.conversation_id"] == "c"


async def test_a_batch_is_linked(traced: Traced, postgres: PostgresBackend) -> None:
    @traced.broker.subscriber("orders")
    async def handle(number: int) -> None: ...

    async with running(traced.broker):
        async with postgres.transaction() as session:
            await traced.broker.publish_batch(1, 2, 3, queue="orders", session=session)
        await traced.events.wait_for("acked", 3)
    [batch] = [span for span in traced.spans("orders create") if not span.links]
    assert dict(batch.attributes or {})["messaging.batch.message_count"] == 3
    linked = [span for span in traced.spans("orders create") if span.links]
    assert len(linked) == len(traced.spans("orders process")) == 3
    assert {link.context.span_id for span in linked for link in span.links} == {id_of(batch)}


async def test_a_synchronous_publish_is_traced(traced: Traced, postgres: PostgresBackend) -> None:
    @traced.broker.subscriber("orders")
    async def handle(number: int) -> None: ...

    async with running(traced.broker):
        async with postgres.transaction() as session:
            await session.run_sync(lambda sync: traced.broker.publish_sync(1, queue="orders", session=sync))
        await traced.events.wait_for("acked")
    create = traced.span("orders create")
    assert parent_of(traced.span("orders publish")) == parent_of(traced.span("orders process")) == id_of(create)


async def test_a_row_of_a_publisher_without_tracing(traced: Traced, postgres: PostgresBackend) -> None:
    @traced.broker.subscriber("orders")
    async def handle(number: int) -> None: ...

    await publish(postgres, make_broker(postgres), [1])
    async with running(traced.broker):
        await traced.events.wait_for("acked")
    assert parent_of(traced.span("orders process")) == id_of(traced.span("orders create"))


async def test_a_batch_handler_is_one_span_linked_to_all_its_messages(
    traced: Traced, postgres: PostgresBackend
) -> None:
    broker, tracer = traced.broker, traced.tracers.get_tracer("shop")

    @broker.subscriber("orders", batch=True, max_wait_ms=20_000, max_records=2)
    @broker.publisher("sums")
    async def handle(numbers: list[int]) -> int:
        return sum(numbers)

    async with running(broker):
        for name in ("one", "two"):
            with tracer.start_as_current_span(name):
                await publish(postgres, broker, [1])
        await traced.events.wait_for("acked", 2)
    process, answer = traced.span("orders process"), traced.span("sums publish")
    assert dict(process.attributes or {})["messaging.batch.message_count"] == 2
    [begun] = [span for span in traced.spans("orders create") if span.links]
    creates = {id_of(span) for span in traced.spans("orders create") if span is not begun}
    assert {link.context.span_id for link in begun.links} == creates
    assert len(creates) == 2
    assert parent_of(process) == id_of(begun), "as with FastStream's other brokers"
    assert parent_of(answer) == id_of(process)
    assert traced.meters.read("messaging.process.messages", "messaging.destination_publish.name") == {"orders": 2}
