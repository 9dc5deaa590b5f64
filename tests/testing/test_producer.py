"""What becomes of a published row in the default mode: the events of its course, and the rows that are kept."""

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from faststream import Context
from faststream.exceptions import RejectMessage
from faststream.middlewares import AckPolicy
from sqlalchemy import MetaData

from faststream_outbox import (
    ConstantRetry,
    NoRetry,
    OutboxBroker,
    OutboxResponse,
    OutboxRouter,
    Relay,
    TestOutboxBroker,
    make_outbox_table,
)
from faststream_outbox.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession
from faststream_outbox.testing import fake_session
from tests.faststream.environments import Environment, MemoryEnvironment, PostgresEnvironment
from tests.metrics.brokers import ENDS, Events
from tests.relay.memory_target import Memory
from tests.waiting import until

LATER = ConstantRetry(delay_seconds=3600, jitter_factor=0.0)


@pytest.fixture
def broker(memory: MemoryEnvironment) -> OutboxBroker:
    return memory.broker()


def subscribe(broker: OutboxBroker) -> None:
    """Subscribe handlers with every outcome there is; none of them is called twice for a row."""

    @broker.subscriber("chain")
    @broker.publisher("end")
    async def first(body: str) -> str:
        return body * 2

    @broker.subscriber("end")
    async def last(body: str) -> None: ...

    @broker.subscriber("fails", retry_strategy=LATER)
    async def fail(body: str) -> None:
        raise ValueError(body)

    @broker.subscriber("dies", retry_strategy=NoRetry())
    async def die(body: str) -> None:
        raise KeyError(body)

    @broker.subscriber("rejects", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def reject(_body: str) -> None:
        raise RejectMessage

    @broker.subscriber("parks", retry_strategy=NoRetry(), on_dead="park")
    async def park(body: str) -> None:
        raise OSError(body)

    @broker.subscriber("batches", batch=True, max_records=2, max_wait_ms=30_000, retry_strategy=LATER)
    async def store(_bodies: list[str], batch: OutboxBatchMessage) -> None:
        await batch.messages[0].reject()

    @broker.subscriber("books")
    async def book(body: str, _session: OutboxSession) -> OutboxResponse:
        return OutboxResponse(body, queue="end")


async def events_of(environment: Environment) -> Events:
    """Run the handlers of `subscribe` in an environment; return what the recorder was called with."""
    broker = environment.broker(metrics_recorder=(events := Events()))
    subscribe(broker)
    async with environment.running(broker):
        for queue in ("chain", "fails", "dies", "rejects", "parks", "books"):
            with suppress(ValueError, KeyError, RejectMessage, OSError):  # it surfaces in the default mode only
                await environment.publish(broker.publish, queue, queue=queue, key="k" if queue == "parks" else None)
        await environment.publish(broker.publish_batch, "a", "b", queue="batches")
        await until(lambda: sum(len(events.named(end)) for end in ENDS) == 10)
    return events


def comparable(events: Events) -> Counter[str]:
    """Return the events as texts, without what is measured; claims, which differ in size, are summed up."""
    texts, fetched = Counter[str](), Counter[str]()
    for event, tags in events.recorded:
        if event == "fetched":
            fetched[tags["queue"]] += tags["count"]
            continue
        kept = {name: value for name, value in tags.items() if name != "duration_seconds"}
        if "next_delay_seconds" in kept:
            kept["next_delay_seconds"] = round(kept["next_delay_seconds"])
        texts[f"{event} {sorted(kept.items())} {'duration_seconds' in tags}"] += 1
    return texts + Counter({f"fetched {queue}": count for queue, count in fetched.items() if count})


@pytest.mark.parametrize("run_loops", [False, True], ids=["by default", "with loops"])
async def test_a_recorder_hears_what_it_hears_on_postgres(real: PostgresEnvironment, *, run_loops: bool) -> None:
    expected = await events_of(real)
    recorded = await events_of(MemoryEnvironment(run_loops=run_loops, handler_session=fake_session()))
    assert comparable(recorded) == comparable(expected)
    assert Counter(event for event, _ in recorded.recorded if event != "fetched") == {
        "published": 9,
        "dispatched": 10,
        "acked": 5,
        "nacked_retried": 1,
        "nacked_terminal": 4,
        "dlq_written": 3,
    }


async def test_a_publish_is_recorded_before_its_handler_runs_and_succeeds_whatever_that_raises(
    memory: MemoryEnvironment,
) -> None:
    broker = memory.broker(metrics_recorder=(events := Events()))

    @broker.subscriber("orders", retry_strategy=LATER)
    async def fail(body: str) -> None:
        raise ValueError(body)

    async with TestOutboxBroker(broker):
        with pytest.raises(ValueError, match="a"):
            await broker.publish("a", queue="orders")
    assert [event for event, _ in events.recorded] == ["published", "fetched", "dispatched", "nacked_retried"]
    assert events.named("published")[0]["status"] == "success"


@pytest.mark.parametrize(("fails", "phase"), [(False, "terminal"), (True, "retry")])
async def test_a_lost_lease_is_recorded(memory: MemoryEnvironment, phase: str, *, fails: bool) -> None:
    broker = memory.broker(metrics_recorder=(events := Events()))

    @broker.subscriber("orders", retry_strategy=LATER)
    async def handle(body: str, message: OutboxMessage) -> None:
        del broker.fake_client.store.rows[message.raw_message.id]
        if fails:
            raise ValueError(body)

    async with TestOutboxBroker(broker):
        try:
            await broker.publish("a", queue="orders")
        except ValueError:
            assert fails
    assert [event for event, _ in events.recorded][2:] == ["dispatched", "lease_lost"]
    assert events.named("lease_lost")[0]["phase"] == phase


async def test_the_answer_of_a_batch_that_lost_a_lease_is_not_published_and_the_others_are_free(
    memory: MemoryEnvironment,
) -> None:
    broker = memory.broker(metrics_recorder=(events := Events()))
    answers = broker.publisher("answers")

    @broker.subscriber("orders", batch=True)
    @answers
    async def handle(_bodies: list[str], batch: OutboxBatchMessage) -> str:
        del broker.fake_client.store.rows[batch.messages[0].raw_message.id]
        return "all"

    async with TestOutboxBroker(broker):
        await broker.publish_batch("a", "b", queue="orders")
        answers.mock.assert_not_called()
        [row] = broker.fake_client.rows
        assert (row.payload, row.attempts_count, row.acquired_token) == (b"b", 0, None)
    assert Counter(event for event, _ in events.recorded) == {
        "published": 1,
        "fetched": 1,
        "dispatched": 2,
        "lease_lost": 1,
        "nacked_retried": 1,
    }


# Rows that only a publisher's mock takes.


async def test_a_row_that_no_handler_took_is_kept_and_its_publisher_has_seen_it(memory: MemoryEnvironment) -> None:
    broker = memory.broker(metrics_recorder=(events := Events()))
    done = broker.publisher("done", headers={"h": "1"})

    @done
    @broker.subscriber("orders")
    async def handle(body: str) -> str:
        return body.upper()

    async with TestOutboxBroker(broker) as test_broker:
        await test_broker.publish("a", queue="orders")
        done.mock.assert_called_once_with("A")
        [row] = await test_broker.fetch_unprocessed(queue="done")
        assert [row] == test_broker.fake_client.rows
        assert (row.payload, row.headers and row.headers["h"]) == (b"A", "1")
        assert (row.deliveries_count, row.attempts_count, row.acquired_token) == (0, 0, None)
    assert Counter(tags["queue"] for event, tags in events.recorded if event == "dispatched") == {"orders": 1}


async def test_a_timer_of_a_publisher_waits_for_its_id(broker: OutboxBroker) -> None:
    reminders = broker.publisher("reminders")
    later: dict[str, Any] = {"timer_id": "t", "activate_in": timedelta(days=3), "session": fake_session()}
    async with TestOutboxBroker(broker):
        assert await reminders.publish("pay", **later) is not None
        assert await reminders.publish("pay", **later) is None
        reminders.mock.assert_called_once_with("pay")
        [row] = broker.fake_client.rows
        assert row.next_attempt_at > datetime.now(UTC) + timedelta(days=2)
        assert await broker.cancel_timer(queue="reminders", timer_id="t", session=fake_session())
        assert broker.fake_client.rows == []


async def test_rows_of_batches_and_of_keys_are_kept_too(broker: OutboxBroker) -> None:
    done = broker.publisher("done")
    async with TestOutboxBroker(broker) as test_broker:
        await test_broker.publish_batch("a", "b", queue="done", keys=["k", None])
        assert [call.args for call in done.mock.call_args_list] == [("a",), ("b",)]
        assert [(row.payload, row.entity_key) for row in test_broker.fake_client.rows] == [(b"a", "k"), (b"b", None)]


async def test_nobody_answers_a_row_that_is_kept(broker: OutboxBroker) -> None:
    done = broker.publisher("done", reply_to="answers")
    async with TestOutboxBroker(broker):
        await done.publish("a", session=fake_session())
        assert [row.queue for row in broker.fake_client.rows] == ["done"]


async def test_a_publisher_of_a_router_keeps_its_row_under_its_prefix(broker: OutboxBroker) -> None:
    router = OutboxRouter("shop.")
    done = router.publisher("done")

    @done
    @router.subscriber("orders")
    async def handle(body: str) -> str:
        return body

    broker.include_router(router)
    async with TestOutboxBroker(broker):
        await broker.publish("a", queue="shop.orders")
        done.mock.assert_called_once_with("a")
        assert [row.queue for row in broker.fake_client.rows] == ["shop.done"]


async def test_a_handler_of_another_broker_takes_a_row_only_from_its_own_table(memory: MemoryEnvironment) -> None:
    here, there = memory.broker(), memory.broker()
    elsewhere = memory.broker(outbox_table=make_outbox_table(MetaData(), "elsewhere"))
    publishers = [here.publisher("taken"), here.publisher("kept")]

    @there.subscriber("taken")
    async def take(body: str) -> None: ...

    @elsewhere.subscriber("kept")
    async def miss(body: str) -> None: ...

    async with TestOutboxBroker(here, there, elsewhere):
        for publisher in publishers:
            await publisher.publish("a", session=fake_session())
            publisher.mock.assert_called_once_with("a")
        take.mock.assert_called_once_with("a")
        miss.mock.assert_not_called()
        assert [row.queue for row in here.fake_client.rows] == ["kept"]


# Rows that are captured.


@pytest.mark.parametrize("capture", ["payments", ["payments"], {"payments", "others"}, True])
async def test_a_captured_row_is_kept_and_its_handler_does_not_run(broker: OutboxBroker, capture: Any) -> None:
    payments = broker.publisher("payments")
    broker.publisher("others")

    @broker.subscriber("payments")
    async def book(cents: int, session: OutboxSession) -> None:
        raise AssertionError(cents, session)

    async with TestOutboxBroker(broker, capture=capture):
        await payments.publish(100, session=fake_session())
        await broker.publish(200, queue="payments", key="k")
        book.mock.assert_not_called()
        assert [call.args for call in payments.mock.call_args_list] == [(100,), (200,)]
        rows = broker.fake_client.rows
        assert [(row.payload, row.entity_key, row.deliveries_count) for row in rows] == [
            (b"100", None, 0),
            (b"200", "k", 0),
        ]
    assert len(broker.subscribers) == 1


async def test_queues_that_are_not_captured_are_handled(broker: OutboxBroker) -> None:
    @broker.subscriber(["orders", "payments"])
    async def handle(_body: str, seen: str = Context("message.raw_message.queue")) -> None:
        assert seen == "orders"

    async with TestOutboxBroker(broker, capture=["payments"]):
        await broker.publish("a", queue="orders")
        await broker.publish("b", queue="payments")
        handle.mock.assert_called_once_with("a")
        assert [row.queue for row in broker.fake_client.rows] == ["payments"]


async def test_the_answer_to_a_captured_queue_is_kept(broker: OutboxBroker) -> None:
    @broker.publisher("payments")
    @broker.subscriber("orders")
    async def order(cents: int) -> int:
        return cents

    @broker.subscriber("payments")
    async def book(cents: int, session: OutboxSession) -> None:
        raise AssertionError(cents, session)

    async with TestOutboxBroker(broker, capture="payments"):
        await broker.publish(100, queue="orders")
        assert [(row.queue, row.payload) for row in broker.fake_client.rows] == [("payments", b"100")]


async def test_a_captured_queue_that_the_broker_has_not_is_refused(broker: OutboxBroker) -> None:
    broker.publisher("receipts")

    @broker.subscriber(["orders", "payments"])
    async def handle(_body: str) -> None: ...

    Relay(broker, to=Memory(), routes={"relayed": "t"})
    real = broker.client
    with pytest.raises(ValueError, match=r"'ordesr'.*'orders', 'payments', 'receipts', 'relayed'\."):
        async with TestOutboxBroker(broker, capture=["ordesr", "orders"]):
            pass
    assert broker.client is real
    async with TestOutboxBroker(broker, capture=["orders", "receipts", "relayed"]):
        await broker.publish("a", queue="orders")
        handle.mock.assert_not_called()


async def test_a_queue_of_any_broker_of_the_test_may_be_captured(broker: OutboxBroker) -> None:
    other = OutboxBroker(outbox_table=make_outbox_table(MetaData()))

    @other.subscriber("orders")
    async def handle(_body: str) -> None: ...

    async with TestOutboxBroker(broker, other, capture="orders"):
        await other.publish("a", queue="orders")
        handle.mock.assert_not_called()


@pytest.mark.parametrize("mode", [{"run_loops": True}, {"with_real": True}])
def test_capturing_beside_loops_is_refused(broker: OutboxBroker, mode: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="default mode"):
        TestOutboxBroker(broker, capture=["orders"], **mode)
