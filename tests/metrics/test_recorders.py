"""What the recorders for Prometheus and OpenTelemetry count, to the last message."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
from faststream.exceptions import RejectMessage
from faststream.prometheus.container import MetricsContainer
from prometheus_client import CollectorRegistry
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.metrics.opentelemetry import OpenTelemetryRecorder
from faststream_outbox.metrics.prometheus import PrometheusRecorder
from faststream_outbox.storage import NewRow
from tests.backends import PostgresBackend
from tests.metrics.brokers import SOON, Events, make_broker, publish, running, stop_during_a_handler
from tests.metrics.readers import Meters, samples


class Recorded:
    """Both recorders, on one broker."""

    def __init__(self, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.meters = Meters()
        self.events = Events(
            PrometheusRecorder(registry=self.registry, app_name="shop", **options),
            OpenTelemetryRecorder(meter_provider=self.meters.provider, include_messages_counters=True, **options),
        )

    def prometheus(self, name: str, *labels: str) -> dict[Any, float]:
        return samples(self.registry, f"faststream_{name}", *labels)


async def run_ten(postgres: PostgresBackend, recorded: Recorded) -> None:
    """Of ten messages 1 and 2 fail once, 3 fails for good, 4 is rejected, and the lease of 5 is lost."""
    broker = make_broker(postgres, recorded.events)

    @broker.subscriber("orders", max_workers=3, retry_strategy=SOON)
    async def handle(number: int, message: OutboxMessage) -> None:
        if number == 3 or (number in {1, 2} and message.raw_message.attempts_count == 0):
            raise ValueError(number)
        if number == 4:
            raise RejectMessage
        if number == 5:
            steal = "UPDATE outbox SET acquired_token = :token, lease_expires_at = 'infinity' WHERE id = :id"
            await postgres.run(steal, token=uuid4(), id=message.raw_message.id)

    async with running(broker):
        await publish(postgres, broker, range(10))
        await recorded.events.wait_for("acked", 7)
        await recorded.events.wait_for("nacked_terminal", 2)
        await recorded.events.wait_for("lease_lost")


@pytest.mark.parametrize("keep_dead", [True, False])
async def test_exact_values(engine: AsyncEngine, *, keep_dead: bool) -> None:
    postgres = PostgresBackend(engine, keep_dead=keep_dead)
    await postgres.create()
    recorded = Recorded()
    await run_ten(postgres, recorded)

    prometheus, read = recorded.prometheus, recorded.meters.read
    consumed = ("app_name", "broker", "handler")
    handle = ("shop", "outbox", "Handle")
    assert prometheus("received_messages_total", *consumed) == {handle: 13}
    assert prometheus("received_messages_size_bytes_count", *consumed) == {handle: 13}
    assert prometheus("received_messages_size_bytes_sum", *consumed) == {handle: 13}
    assert prometheus("received_messages_in_process", *consumed) == {handle: 0}
    assert prometheus("received_processed_messages_total", "status") == {"acked": 7, "nacked": 5, "error": 1}
    assert prometheus("received_processed_messages_duration_seconds_count", *consumed) == {handle: 12}
    exceptions = prometheus("received_processed_messages_exceptions_total", "exception_type")
    assert exceptions["ValueError"] == 4
    assert prometheus("published_messages_total", "broker", "destination", "status") == {
        ("outbox", "orders", "success"): 10
    }
    assert prometheus("published_messages_duration_seconds_count", "destination") == {"orders": 10}
    assert prometheus("outbox_retried_total", "handler") == {"Handle": 3}
    assert prometheus("outbox_terminal_total", "reason") == {"retry_terminal": 1, "rejected": 1}
    assert prometheus("outbox_lease_lost_total", "handler", "phase") == {("Handle", "terminal"): 1}
    dead = {"retry_terminal": 1, "rejected": 1} if keep_dead else {}
    assert prometheus("outbox_dlq_written_total", "reason") == dead
    assert prometheus("outbox_fetch_batches_total", "non_empty")["true"] >= 1

    assert read("messaging.process.messages", "messaging.outbox.status") == {"acked": 7, "nacked": 5}
    assert read("messaging.process.duration", "messaging.outbox.status") == {"acked": 7, "nacked": 5}
    assert read("messaging.process.messages", "messaging.system", "messaging.destination.name") == {
        ("outbox", "orders"): 12
    }
    assert read("messaging.process.messages", "messaging.outbox.handler") == {"Handle": 12}
    assert read("messaging.process.messages", "messaging.outbox.terminal_reason") == {
        None: 10,
        "retry_terminal": 1,
        "rejected": 1,
    }
    assert read("messaging.publish.messages", "messaging.outbox.status") == {"success": 10}
    assert read("messaging.publish.duration", "messaging.destination.name") == {"orders": 10}
    assert read("messaging.outbox.retried", "messaging.outbox.handler", "error.type") == {("Handle", "ValueError"): 3}
    assert read("messaging.outbox.lease_lost", "messaging.outbox.lease_phase") == {"terminal": 1}
    assert read("messaging.outbox.dlq_written", "messaging.outbox.dlq_reason") == dead
    assert sum(read("messaging.outbox.fetch.batches", "messaging.destination.name").values()) >= 1


async def test_without_bus_metrics_only_the_outboxs_own_are_left(postgres: PostgresBackend) -> None:
    recorded = Recorded(include_bus_metrics=False)
    await run_ten(postgres, recorded)
    names = {metric.name for metric in recorded.registry.collect()}
    assert names
    assert all(name.startswith("faststream_outbox_") for name in names)
    assert recorded.prometheus("outbox_terminal_total", "reason") == {"retry_terminal": 1, "rejected": 1}
    assert (
        recorded.meters.read("messaging.process.duration") == recorded.meters.read("messaging.publish.duration") == {}
    )
    assert recorded.meters.read("messaging.outbox.dlq_written") == {(): 2}


async def test_a_stop_that_runs_out_of_time(postgres: PostgresBackend) -> None:
    recorded = Recorded()
    broker = make_broker(postgres, recorded.events, graceful_timeout=0.05)
    await stop_during_a_handler(postgres, broker)
    assert recorded.prometheus("outbox_drain_timeout_total", "handler") == {"Handle": 1}
    assert recorded.prometheus("received_messages_in_process", "handler") == {"Handle": 0}
    assert recorded.meters.read("messaging.outbox.drain_timeout") == {(): 1}


async def test_keys_that_another_claimer_had_first(postgres: PostgresBackend) -> None:
    recorded = Recorded()
    broker = make_broker(postgres, recorded.events)

    @broker.subscriber("orders")
    async def handle(_number: int) -> None: ...

    await postgres.insert(*(NewRow("orders", b"1", key=key) for key in "abc"))
    async with postgres.engine.begin() as rival, running(broker):
        # The rival's claim is not committed yet; until the rollback each claim of the broker meets its three keys.
        await rival.execute(text("SELECT id FROM outbox FOR UPDATE"))
        await recorded.events.wait_for("keys_contended", queue="orders", count=3)
        await rival.rollback()
        await recorded.events.wait_for("acked", 3)
    lost = sum(tags["count"] for tags in recorded.events.named("keys_contended"))
    assert recorded.prometheus("outbox_keys_contended_total", "handler") == {"Handle": lost}
    names = ("messaging.destination.name", "messaging.outbox.handler")
    assert recorded.meters.read("messaging.outbox.keys_contended", *names) == {("orders", "Handle"): lost}


async def test_a_broker_that_is_alone_loses_no_key(postgres: PostgresBackend) -> None:
    recorded = Recorded()
    broker = make_broker(postgres, recorded.events)

    @broker.subscriber("orders", max_workers=4)
    async def handle(_number: int) -> None: ...

    async with running(broker):
        for _ in range(5):
            await postgres.insert(*(NewRow("orders", b"1", key=f"k{n % 20}") for n in range(60)))
        await recorded.events.wait_for("acked", 300)
    assert recorded.events.named("keys_contended") == []
    assert recorded.prometheus("outbox_keys_contended_total", "handler") == {}


async def test_messages_that_are_pulled(postgres: PostgresBackend) -> None:
    recorded = Recorded()
    broker = make_broker(postgres, recorded.events)
    subscriber = broker.subscriber("orders")
    async with running(broker):
        await publish(postgres, broker, range(2))
        for _ in range(2):
            message = await subscriber.get_one(timeout=60)
            assert message is not None
            if message.body == b"0":
                await message.ack()
    assert recorded.prometheus("received_messages_total", "broker") == {"outbox": 2}
    assert recorded.prometheus("received_processed_messages_total", "status") == {"acked": 1}
    assert recorded.prometheus("received_messages_in_process", "broker") == {"outbox": 0}


async def test_a_failed_publish(postgres: PostgresBackend) -> None:
    recorded = Recorded()
    await postgres.run("ALTER TABLE outbox ADD CHECK (queue <> 'refused')")
    with pytest.raises(Exception, match="outbox"):
        await publish(postgres, make_broker(postgres, recorded.events), [1], queue="refused")
    assert recorded.prometheus("published_messages_total", "destination", "status") == {("refused", "error"): 1}
    assert sum(recorded.prometheus("published_messages_exceptions_total", "exception_type").values()) == 1
    assert recorded.meters.read("messaging.publish.messages") == {}
    [(status, error)] = recorded.meters.read("messaging.publish.duration", "messaging.outbox.status", "error.type")
    assert status == "error"
    assert error


EVENTS = (
    *("fetched", "dispatched", "acked", "nacked_retried", "nacked_terminal", "lease_lost", "dlq_written"),
    *("keys_contended", "drain_timeout", "dispatch_abandoned", "published", "backlog", "an_event_of_the_future"),
)


@pytest.mark.parametrize("event", EVENTS)
def test_missing_tags_and_unknown_events_are_survived(event: str) -> None:
    recorded = Recorded()
    recorded.events(event, {})
    recorded.events(event, {"queue": "orders", "of_the_future": object()})
    assert recorded.prometheus("received_messages_in_process", "handler") in ({}, {"": 2})


def test_a_row_that_no_handler_saw_leaves_the_gauge_alone() -> None:
    recorded = Recorded()
    recorded.events("dispatched", {"queue": "orders"})
    recorded.events("nacked_terminal", {"queue": "orders", "reason": "max_deliveries"})
    recorded.events("lease_lost", {"queue": "orders", "phase": "dispatch"})
    assert recorded.prometheus("received_messages_in_process", "handler") == {"": 1}
    recorded.events("dispatch_abandoned", {"queue": "orders", "duration_seconds": 1.0})
    assert recorded.prometheus("received_messages_in_process", "handler") == {"": 0}


def test_custom_labels() -> None:
    def tier(tags: Mapping[str, Any]) -> str:
        return "gold" if tags.get("queue") == "vip" else "other"

    registry = CollectorRegistry()
    recorder = PrometheusRecorder(
        registry=registry, custom_labels={"region": "eu", "tier": tier}, metrics_prefix="shop"
    )
    recorder("dispatched", {"queue": "vip", "subscriber": "Handle"})
    recorder("backlog", {"queue": "vip", "ready": 3})
    labels = ("app_name", "region", "tier")
    assert samples(registry, "shop_received_messages_total", *labels) == {("", "eu", "gold"): 1}
    assert samples(registry, "shop_outbox_backlog_rows", "state", *labels)["ready", "", "eu", "gold"] == 3


def test_two_brokers_and_other_middlewares_share_a_registry() -> None:
    registry = CollectorRegistry()
    MetricsContainer(registry, custom_label_names=())  # as KafkaPrometheusMiddleware makes it
    for _ in range(2):
        PrometheusRecorder(registry=registry)("dispatched", {"subscriber": "Handle"})
        PrometheusRecorder(registry=registry)("drain_timeout", {"subscriber": "Handle"})
    assert samples(registry, "faststream_received_messages_total", "handler") == {"Handle": 2}
    assert samples(registry, "faststream_outbox_drain_timeout_total", "handler") == {"Handle": 2}


@pytest.mark.parametrize("interval", [0, -1, 0.5, float("inf"), float("nan")])
def test_an_interval_that_would_count_all_the_time_is_refused(interval: float) -> None:
    with pytest.raises(ValueError, match="backlog_interval is a finite number from 1 up"):
        PrometheusRecorder(registry=CollectorRegistry(), backlog_interval=interval)
    with pytest.raises(ValueError, match="backlog_interval is a finite number from 1 up"):
        OpenTelemetryRecorder(backlog_interval=interval)


def test_the_backlog_is_counted_unless_it_is_switched_off() -> None:
    assert PrometheusRecorder(registry=CollectorRegistry()).backlog_interval == 15.0
    assert OpenTelemetryRecorder().backlog_interval == 15.0
    assert PrometheusRecorder(registry=CollectorRegistry(), backlog_interval=None).backlog_interval is None
    assert OpenTelemetryRecorder(backlog_interval=None).backlog_interval is None
