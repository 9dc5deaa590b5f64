"""FastStream's Prometheus middleware, on the outbox."""

from collections import Counter

from faststream.exceptions import RejectMessage
from faststream.middlewares import AckPolicy
from prometheus_client import CollectorRegistry

from faststream_outbox import OutboxResponse
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.metrics.prometheus import PrometheusRecorder
from faststream_outbox.prometheus import OutboxPrometheusMiddleware
from tests.backends import PostgresBackend
from tests.metrics.brokers import SOON, Events, make_broker, publish, running
from tests.metrics.readers import samples


async def test_exact_values(postgres: PostgresBackend) -> None:
    registry, events = CollectorRegistry(), Events()
    middleware = OutboxPrometheusMiddleware(registry=registry, app_name="shop", custom_labels={"region": "eu"})
    broker = make_broker(postgres, events, middlewares=[middleware])

    @broker.subscriber("orders", retry_strategy=SOON)
    @broker.publisher("next")
    async def handle(number: int, message: OutboxMessage) -> int:
        if number == 1 and message.raw_message.attempts_count == 0:
            raise ValueError(number)
        if number == 2:
            raise RejectMessage
        return number

    @broker.subscriber("next", ack_policy=AckPolicy.MANUAL)
    async def last(_number: int, message: OutboxMessage) -> None:
        await message.ack()

    async with running(broker):
        await publish(postgres, broker, range(5))
        await events.wait_for("acked", 4, queue="next")
        await events.wait_for("nacked_terminal")

    consumed = ("app_name", "broker", "handler", "region")
    orders, next_queue = ("shop", "outbox", "orders", "eu"), ("shop", "outbox", "next", "eu")
    assert samples(registry, "faststream_received_messages_total", *consumed) == {orders: 6, next_queue: 4}
    assert samples(registry, "faststream_received_messages_in_process", *consumed) == {orders: 0, next_queue: 0}
    assert samples(registry, "faststream_received_messages_size_bytes_sum", *consumed) == {orders: 6, next_queue: 4}
    statuses = samples(registry, "faststream_received_processed_messages_total", "handler", "status")
    assert statuses == {
        ("orders", "acked"): 3 + 1,
        ("orders", "error"): 1,
        ("orders", "rejected"): 1,
        ("next", "acked"): 4,
    }
    exceptions = samples(registry, "faststream_received_processed_messages_exceptions_total", "exception_type")
    assert exceptions == {"ValueError": 1}
    published = samples(registry, "faststream_published_messages_total", "broker", "destination", "status")
    assert published == {("outbox", "orders", "success"): 5, ("outbox", "next", "success"): 4}


async def test_beside_a_recorder_everything_is_counted_once(postgres: PostgresBackend) -> None:
    registry = CollectorRegistry()
    events = Events(PrometheusRecorder(registry=registry, include_bus_metrics=False))
    broker = make_broker(postgres, events, middlewares=[OutboxPrometheusMiddleware(registry=registry)])

    @broker.subscriber("orders")
    async def handle(number: int) -> None: ...

    async with running(broker):
        await publish(postgres, broker, range(5))
        await events.wait_for("acked", 5)
    assert samples(registry, "faststream_received_messages_total", "handler") == {"orders": 5}
    assert samples(registry, "faststream_published_messages_total", "destination") == {"orders": 5}
    assert samples(registry, "faststream_outbox_fetch_batches_total", "non_empty")["true"] >= 1


async def test_a_label_of_the_message(postgres: PostgresBackend) -> None:
    def attempt(row: OutboxDelivery | None) -> str:
        return "" if row is None else str(row.deliveries_count)

    registry, events = CollectorRegistry(), Events()
    middleware = OutboxPrometheusMiddleware(registry=registry, custom_labels={"attempt": attempt})
    broker = make_broker(postgres, events, middlewares=[middleware])
    tries = Counter[int]()

    @broker.subscriber("orders", retry_strategy=SOON)
    async def handle(number: int) -> OutboxResponse:
        tries[number] += 1
        if tries[number] == 1:
            raise ValueError(number)
        return OutboxResponse(number, queue="elsewhere")

    async with running(broker):
        await publish(postgres, broker, range(3))
        await events.wait_for("acked", 3)
    assert samples(registry, "faststream_received_messages_total", "attempt") == {"1": 3, "2": 3}
    published = samples(registry, "faststream_published_messages_total", "destination", "attempt")
    assert published == {("orders", ""): 3, ("elsewhere", "2"): 3}
