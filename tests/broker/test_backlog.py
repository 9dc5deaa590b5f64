"""What is in the table, as gauges: right, fresh, and at a price that nobody notices."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import MagicMock

import pytest
from prometheus_client import CollectorRegistry

from faststream_outbox import OutboxBroker, TestOutboxBroker
from faststream_outbox.broker.backlog import BacklogWatch
from faststream_outbox.metrics.opentelemetry import OpenTelemetryRecorder
from faststream_outbox.metrics.prometheus import PrometheusRecorder
from faststream_outbox.storage import Dead, MemoryStore, NewRow, QueueStats, Settlement, StoreLane
from faststream_outbox.storage.ordering import ParkKey
from tests.backends import PostgresBackend
from tests.engine.pipelines import Reports
from tests.metrics.brokers import Events, make_broker, running
from tests.metrics.readers import Meters, samples

OFTEN = 0.01


async def fill(postgres: PostgresBackend) -> None:
    """In `a`: one row expired, one in flight, two ready of which the older is 50 s old, one scheduled; in `b`: dead."""
    await postgres.insert(NewRow("a", b""))
    await postgres.claim("a", lease_seconds=5)
    await postgres.pass_time(50)
    await postgres.insert(NewRow("a", b""), NewRow("b", b""))
    await postgres.claim("a", limit=1, lease_seconds=3600)
    [dying] = (await postgres.claim("b")).rows
    async with postgres.store.connect() as lane:
        await lane.settle([Settlement(dying.lease, Dead("rejected"))])
    await postgres.insert(NewRow("a", b""))
    await postgres.pass_time(50)
    await postgres.insert(NewRow("a", b""), NewRow("a", b"", activate_in=timedelta(hours=1)))


async def test_known_rows(postgres: PostgresBackend) -> None:
    await fill(postgres)
    registry, meters = CollectorRegistry(), Meters()
    prometheus = PrometheusRecorder(registry=registry, app_name="shop")
    events = Events(prometheus, OpenTelemetryRecorder(meter_provider=meters.provider), backlog_interval=60)
    async with running(make_broker(postgres, events)):
        await events.wait_for("backlog", queue="b")

    rows = samples(registry, "faststream_outbox_backlog_rows", "app_name", "broker", "queue", "state")
    a, b = {"ready": 2, "scheduled": 1, "in_flight": 1, "expired": 1, "blocked": 0, "dead": 0}, {"dead": 1}
    expected = {(queue, state): of.get(state, 0) for queue, of in (("a", a), ("b", b)) for state in a}
    assert rows == {("shop", "outbox", *name): value for name, value in expected.items()}
    assert meters.read("messaging.outbox.backlog", "messaging.destination.name", "messaging.outbox.state") == expected
    # A gauge is there whenever it is asked for, also between two counts.
    assert meters.read("messaging.outbox.backlog", "messaging.system") == {"outbox": 6}

    about = pytest.approx(50, abs=20)
    assert samples(registry, "faststream_outbox_oldest_ready_age_seconds", "queue") == {"a": about, "b": 0}
    assert meters.read("messaging.outbox.oldest_ready_age", "messaging.destination.name") == {"a": about, "b": 0}
    older = pytest.approx(100, abs=20)
    assert samples(registry, "faststream_outbox_oldest_age_seconds", "queue") == {"a": older, "b": 0}
    assert meters.read("messaging.outbox.oldest_age", "messaging.destination.name") == {"a": older, "b": 0}


async def test_keys(postgres: PostgresBackend) -> None:
    """In `a`: one key parked and one delayed, each with two rows behind its head."""
    await postgres.insert(*(NewRow("a", b"", key="parked") for _ in range(3)))
    async with postgres.transaction() as session:
        await postgres.store.act_on_key(session, ParkKey("x"), queue="a", key="parked")
    await postgres.insert(*(NewRow("a", b"", key="late", activate_in=timedelta(hours=1)) for _ in range(3)))
    registry, meters = CollectorRegistry(), Meters()
    prometheus = PrometheusRecorder(registry=registry, app_name="shop")
    events = Events(prometheus, OpenTelemetryRecorder(meter_provider=meters.provider), backlog_interval=60)
    async with running(make_broker(postgres, events)):
        await events.wait_for("backlog", queue="a", blocked=5, scheduled=1, blocked_keys=2, parked_keys=1)
    assert samples(registry, "faststream_outbox_backlog_rows", "state")["blocked"] == 5
    assert samples(registry, "faststream_outbox_blocked_keys", "queue") == {"a": 2}
    assert samples(registry, "faststream_outbox_parked_keys", "queue") == {"a": 1}
    assert meters.read("messaging.outbox.backlog", "messaging.outbox.state")["blocked"] == 5
    assert meters.read("messaging.outbox.blocked_keys", "messaging.destination.name") == {"a": 2}
    assert meters.read("messaging.outbox.parked_keys", "messaging.destination.name") == {"a": 1}


async def test_a_queue_that_has_become_empty_is_told_of(postgres: PostgresBackend) -> None:
    events = Events(backlog_interval=OFTEN)
    broker = make_broker(postgres, events)

    @broker.subscriber("orders")
    async def handle(number: int) -> None: ...

    await postgres.insert(NewRow("elsewhere", b""))
    async with running(broker):
        await events.wait_for("backlog", queue="elsewhere", ready=1)
        await postgres.run("DELETE FROM outbox")
        nothing = {"ready": 0, "scheduled": 0, "in_flight": 0, "expired": 0, "blocked": 0, "dead": 0}
        nothing |= {"blocked_keys": 0, "parked_keys": 0}
        await events.wait_for("backlog", queue="elsewhere", **nothing, oldest_ready_age=None, oldest_age=None)
        await events.wait_for("backlog", queue="orders", **nothing)
        told = len([tags for tags in events.named("backlog") if tags["queue"] == "elsewhere"])
        counts = len(events.named("backlog"))
        await events.wait_for("backlog", counts + 3)
    after = [tags for tags in events.named("backlog") if tags["queue"] == "elsewhere"]
    assert len(after) == told, "once is enough: a queue that is gone is forgotten"


async def test_no_connection_is_held_between_two_counts(postgres: PostgresBackend) -> None:
    held: list[int] = []

    class Looking(Events):
        def __call__(self, event: str, tags: Mapping[str, Any]) -> None:
            held.append(postgres.engine.pool.checkedout())  # type: ignore[attr-defined]  # a QueuePool
            super().__call__(event, tags)

    await postgres.insert(NewRow("a", b""))
    events = Looking(backlog_interval=OFTEN)
    async with running(make_broker(postgres, events)):
        await events.wait_for("backlog", 3)
    assert set(held) == {0}


async def test_a_table_that_is_away_for_a_while(postgres: PostgresBackend, caplog: pytest.LogCaptureFixture) -> None:
    await postgres.insert(NewRow("a", b""))
    await postgres.run("ALTER TABLE outbox RENAME TO away")
    logger = MagicMock()
    failed = asyncio.Event()
    logger.log.side_effect = lambda *_, extra, **__: failed.set() if extra["event"] == "backlog_failed" else None
    events = Events(backlog_interval=OFTEN)
    async with running(make_broker(postgres, events, logger=logger)):
        async with asyncio.timeout(60):
            await failed.wait()
        await postgres.run("ALTER TABLE away RENAME TO outbox")
        await events.wait_for("backlog", queue="a", ready=1)
    assert not caplog.records


class SlowStore(MemoryStore):
    """Takes its time to count, and sometimes fails."""

    def __init__(self, seconds: float, *, fails: bool = False) -> None:
        super().__init__()
        self.counts: list[tuple[float, float]] = []
        self.counted = asyncio.Event()
        self.wanted = 4
        self._seconds, self._fails = seconds, fails

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreLane]:
        async with super().connect() as lane:
            lane.stats = self._stats  # type: ignore[method-assign]
            yield lane

    async def _stats(self) -> list[QueueStats]:
        began = time.monotonic()
        try:
            await asyncio.sleep(self._seconds)
            if self._fails:
                raise ConnectionError("gone")
        finally:
            self.counts.append((began, time.monotonic()))
            if len(self.counts) >= self.wanted:
                self.counted.set()
        return []


@pytest.mark.parametrize("fails", [False, True])
async def test_counting_takes_a_twentieth_of_the_time_at_most(*, fails: bool) -> None:
    store, reports = SlowStore(0.02, fails=fails), Reports()
    watch = BacklogWatch(store, ["a"], reports, interval=OFTEN)
    watch.start()
    async with asyncio.timeout(30):
        await store.counted.wait()
    await watch.stop()
    for (began, ended), (next_began, _) in zip(store.counts, store.counts[1:], strict=False):
        assert next_began - ended >= 19 * (ended - began)
    assert bool(reports.named("backlog_failed")) is fails
    assert bool(reports.counted("backlog")) is not fails


async def test_a_failure_that_nobody_waits_for_any_more_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    store = SlowStore(0.0, fails=True)
    store.wanted = 1
    watch = BacklogWatch(store, [], Reports(), interval=OFTEN)
    watch.start()
    async with asyncio.timeout(30):
        await store.counted.wait()
    await watch.stop()
    gc.collect()
    assert not caplog.records


async def test_stopping_does_not_wait_for_a_count() -> None:
    store = SlowStore(3600)
    watch = BacklogWatch(store, [], Reports(), interval=OFTEN)
    watch.start()
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await watch.stop()
    assert not watch.alive


def watches() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == BacklogWatch.__name__]


def plain(event: str, tags: Mapping[str, Any]) -> None:
    """Count nothing: a recorder like any function."""


@pytest.mark.parametrize(
    "recorder",
    [plain, None, MagicMock(), Events(), PrometheusRecorder(registry=CollectorRegistry(), backlog_interval=None)],
    ids=["a function", "none", "a mock", "None", "switched off"],
)
async def test_nobody_counts_for_a_recorder_that_does_not_ask(
    postgres: PostgresBackend, recorder: Callable[..., None] | None
) -> None:
    async with running(make_broker(postgres, recorder)):
        assert watches() == []


async def test_it_begins_and_ends_with_the_broker(postgres: PostgresBackend) -> None:
    broker = make_broker(postgres, events := Events(backlog_interval=60))
    for _ in range(2):
        async with running(broker):
            await broker.start()  # once more: the watch is there already
            assert len(watches()) == 1
        assert watches() == []
    assert events.named("backlog") == []


async def test_without_an_engine_there_is_nothing_to_count_with(postgres: PostgresBackend) -> None:
    broker = OutboxBroker(outbox_table=postgres.outbox_table, metrics_recorder=Events(backlog_interval=60))
    async with running(broker):
        assert watches() == []


async def test_in_memory(postgres: PostgresBackend) -> None:
    broker = make_broker(postgres, events := Events(backlog_interval=OFTEN))
    async with TestOutboxBroker(broker, run_loops=True) as test_broker:
        await test_broker.publish(1, queue="orders")
        await events.wait_for("backlog", queue="orders", ready=1)
