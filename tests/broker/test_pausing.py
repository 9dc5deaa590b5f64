"""Subscribers, pullers and relays obey a pause, in every process, and go on when it ends."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table

from faststream_outbox import OutboxBroker, make_operations_tables
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.operations import OperationsTableError, OutboxOperations
from faststream_outbox.storage import NewRow
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.broker.killed_subscriber import QUEUE, KilledSubscriber
from tests.killed_processes import ProcessGroup
from tests.order.settings import ORDERINGS
from tests.waiting import until, until_empty

HELD = "SELECT count(*) FROM outbox WHERE acquired_token IS NOT NULL"
FREE = "SELECT count(*) FROM outbox WHERE acquired_token IS NULL AND deliveries_count = 0"


@pytest.fixture
async def control(postgres: PostgresBackend) -> Table:
    tables = make_operations_tables(postgres.metadata)
    async with postgres.engine.begin() as connection:
        await connection.run_sync(postgres.metadata.create_all)
    return tables.control


@pytest.fixture
def operations(postgres: PostgresBackend, control: Table) -> OutboxOperations:
    return OutboxOperations(postgres.engine, outbox_table=postgres.outbox_table, control_table=control)


class Handler:
    """Handles messages, each when `go` is set."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.go = asyncio.Event()

    async def __call__(self, body: str) -> None:
        self.began.append(body)
        await self.go.wait()
        self.ended.append(body)


def broker_with(
    postgres: PostgresBackend, control: Table, handler: Handler, *queues: str, **options: Any
) -> OutboxBroker:
    broker = broker_on(postgres, options.pop("records", None), control_table=control)

    @broker.subscriber(list(queues or ["q"]), **options)
    async def handle(body: str) -> None:
        await handler(body)

    return broker


@pytest.mark.parametrize("strategy", [None, *ORDERINGS])
async def test_a_paused_queue_gives_back_what_was_not_started_and_ends_what_runs(
    postgres: PostgresBackend, control: Table, operations: OutboxOperations, strategy: str | None
) -> None:
    handler, records = Handler(), Records()
    options: dict[str, Any] = {} if strategy is None else {"ordering": ORDERINGS[strategy]}
    broker = broker_with(postgres, control, handler, max_workers=2, fetch_batch_size=20, records=records, **options)
    keys: dict[str, Any] = {} if strategy is None else {"keys": [f"k{n}" for n in range(12)]}
    async with postgres.transaction() as session:
        await broker.publish_batch(*map(str, range(12)), queue="q", session=session, **keys)
    async with started(broker):
        await until(lambda: len(handler.began) == 2)
        await operations.pause("q", by="ann", reason="a test")
        # The two that run are held; all others are free, and look as if they had never been claimed.
        # A claim that was under way brings rows, which are given back, too.
        await until(lambda: records.named("queue_paused"))
        await until(lambda: postgres.one(FREE), lambda free: free == 10)
        assert await postgres.one(HELD) == 2
        assert await broker.ping(5)
        handler.go.set()
        await until(lambda: len(handler.ended) == 2)
        await until(lambda: postgres.one("SELECT count(*) FROM outbox"), lambda left: left == 10)
        await publish(broker, postgres, "later")
        assert len(handler.began) == 2
        await operations.resume("q", reason="the test is over")
        await until_empty(postgres)
    assert sorted(handler.ended) == sorted([*map(str, range(12)), "later"])
    [paused], [resumed] = records.named("queue_paused"), records.named("queue_resumed")
    assert paused.getMessage().startswith("Queue q is paused by ann (a test).")
    assert resumed.queue == "q"


async def test_a_broker_that_starts_during_a_pause_claims_nothing_before_it_ends(
    postgres: PostgresBackend, control: Table, operations: OutboxOperations
) -> None:
    handler, records = Handler(), Records()
    handler.go.set()
    broker = broker_with(postgres, control, handler, records=records)
    await publish(broker, postgres, "a", "b")
    await operations.pause("q", datetime.now(UTC) + timedelta(seconds=2), reason="a test")
    async with started(broker):
        await until(lambda: records.named("queue_paused"))
        assert handler.began == []
        assert await postgres.one(FREE) == 2
        # It ends by itself, by the clock of the database.
        await until_empty(postgres)
    [paused] = records.named("queue_paused")
    assert " until " in paused.getMessage()
    assert len(records.named("queue_resumed")) == 1


async def test_other_queues_of_a_subscriber_go_on(
    postgres: PostgresBackend, control: Table, operations: OutboxOperations
) -> None:
    handler, records = Handler(), Records()
    handler.go.set()
    broker = broker_with(postgres, control, handler, "a", "b", records=records)
    async with started(broker):
        await operations.pause("a", reason="a test")
        await until(lambda: records.named("queue_paused"))
        await postgres.insert(NewRow("a", b"a"), NewRow("a", b"a with key", key="k"))
        await postgres.insert(NewRow("b", b"b"), NewRow("b", b"b with key", key="k"))
        await until(lambda: sorted(handler.ended) == ["b", "b with key"])
        assert await postgres.one("SELECT count(*) FROM outbox WHERE queue = 'a' AND acquired_token IS NULL") == 2
        await operations.resume("a", reason="the test is over")
        await until_empty(postgres)


async def test_rows_of_a_dead_process_stay_while_their_queue_is_paused(
    postgres: PostgresBackend, control: Table, operations: OutboxOperations
) -> None:
    """Suspects, too: two processes have not settled them, and they run when the pause ends."""
    await postgres.insert(NewRow("q", b"a"), NewRow("q", b"b", key="k"), NewRow("other", b"c"))
    await postgres.run(
        "UPDATE outbox SET acquired_token = gen_random_uuid(), acquired_at = now() - interval '2 minutes', "
        "deliveries_count = 2, lease_expires_at = now() - interval '1 minute' WHERE queue = 'q'"
    )
    handler, records = Handler(), Records()
    handler.go.set()
    broker = broker_with(postgres, control, handler, "q", "other", records=records)
    await operations.pause("q", reason="a test")
    async with started(broker):
        await until(lambda: handler.ended == ["c"])
        await publish(broker, postgres, "d", queue="other")
        await until(lambda: handler.ended == ["c", "d"])
        await operations.resume("q", reason="the test is over")
        await until_empty(postgres)
    assert sorted(handler.ended) == ["a", "b", "c", "d"]


async def test_a_batch_that_was_not_begun_is_given_back(
    postgres: PostgresBackend, control: Table, operations: OutboxOperations
) -> None:
    broker, handled, go = broker_on(postgres, control_table=control), list[list[str]](), asyncio.Event()

    @broker.subscriber("q", batch=True, max_records=4, max_workers=1)
    async def handle(bodies: list[str]) -> None:
        handled.append(bodies)
        await go.wait()

    await publish(broker, postgres, *map(str, range(12)))
    async with started(broker):
        await until(lambda: len(handled) == 1)
        await operations.pause("q", reason="a test")
        await until(lambda: postgres.one(HELD), lambda held: held == len(handled[0]))
        go.set()
        await operations.resume("q", reason="the test is over")
        await until_empty(postgres)
    assert sorted(body for bodies in handled for body in bodies) == sorted(map(str, range(12)))


async def test_a_caller_that_pulls_gets_nothing_of_a_paused_queue(
    postgres: PostgresBackend, control: Table, operations: OutboxOperations
) -> None:
    records = Records()
    broker = broker_on(postgres, records, control_table=control)
    subscriber = broker.subscriber("q")
    await operations.pause("q", reason="a test")
    await postgres.insert(NewRow("q", b"a"))
    async with started(broker):
        pulling = asyncio.create_task(subscriber.get_one(timeout=60))
        await until(lambda: records.named("queue_paused"))
        assert await subscriber.get_one(timeout=0.1) is None
        assert not pulling.done()
        await operations.resume("q", reason="the test is over")
        message = await pulling
        assert message is not None
        await message.ack()
        # And once more, while the loop waits.
        await operations.pause("q", reason="a test")
        await until(lambda: len(records.named("queue_paused")) == 2)
        await postgres.insert(NewRow("q", b"b"))
        assert await subscriber.get_one(timeout=0.1) is None
        await operations.resume("q", reason="the test is over")
        async for each in subscriber:
            assert each.body == b"b"
            break


async def test_without_notifications_a_pause_is_obeyed_by_polling(
    postgres: PostgresBackend, control: Table, operations: OutboxOperations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listening connection has no right to read the control table; another one of the pool has."""
    handler, records = Handler(), Records()
    handler.go.set()
    broker = broker_with(postgres, control, handler, records=records)
    monkeypatch.setattr(broker.client.store._notifications._looks, "with_control", None)  # type: ignore[attr-defined]  # of Postgres
    async with started(broker):
        await operations.pause("q", reason="a test")
        await until(lambda: records.named("queue_paused"))
        await publish(broker, postgres, "a")
        await operations.resume("q", reason="the test is over")
        await until_empty(postgres)


async def test_a_control_table_that_is_missing_is_reported_and_found_later(
    postgres: PostgresBackend, control: Table, operations: OutboxOperations
) -> None:
    async with postgres.engine.begin() as connection:
        await connection.run_sync(control.drop)
    handler, records = Handler(), Records()
    handler.go.set()
    broker = broker_with(postgres, control, handler, records=records)
    async with started(broker):
        [unreadable] = records.named("control_unreadable")
        assert unreadable.getMessage().endswith("Pauses are not obeyed, and messages are delivered.")
        await publish(broker, postgres, "a")
        await until_empty(postgres)
        await until(lambda: len(records.named("control_unreadable")) > 1)
        assert broker.client.store.nodes.own.locked
        async with postgres.engine.begin() as connection:
            await connection.run_sync(control.create)
        await operations.pause("q", reason="a test")
        await until(lambda: records.named("queue_paused"))


async def test_a_pause_of_a_transaction_begins_with_its_commit(
    postgres: PostgresBackend, operations: OutboxOperations
) -> None:
    async with postgres.sessions() as session:
        paused = await operations.pause("q", reason="a test", by="ann", session=session)
        assert [each.queue for each in await operations.pauses(session=session)] == ["q"]
        await session.rollback()
    assert await operations.pauses() == []
    assert not await operations.resume("q", reason="nothing to resume")
    until_then = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    for _ in range(2):  # the second changes the first
        paused = await operations.pause("q", until_then, reason="a test", by="ann")
        assert await operations.pauses() == [paused]
    assert (paused.queue, paused.until, paused.by, paused.reason) == ("q", until_then, "ann", "a test")
    await postgres.run("UPDATE outbox_control SET until = now() - interval '1 second'")
    assert await operations.pauses() == []
    assert not await operations.resume("q", reason="it is over")


async def test_a_paused_queue_says_so_even_without_messages(
    postgres: PostgresBackend, operations: OutboxOperations
) -> None:
    await postgres.insert(NewRow("a", b""), NewRow("c", b""))
    pauses = [await operations.pause(queue, reason="a test", by="ann") for queue in ("b", "c")]
    found = {each.queue: (each.ready.number, each.paused) for each in await operations.queues()}
    assert found == {"a": (1, None), "b": (0, pauses[0]), "c": (1, pauses[1])}
    assert list(found) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("until_when", "fault"),
    [
        (
            datetime(2030, 1, 1),  # noqa: DTZ001 - that is the point
            "with a time zone",
        ),
        (datetime(2020, 1, 1, tzinfo=UTC), "over already"),
        ("noon", "is a datetime"),
    ],
)
async def test_an_end_that_cannot_be_meant_is_refused(
    operations: OutboxOperations, until_when: Any, fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        await operations.pause("q", until_when, reason="a test")


async def test_without_a_control_table_the_error_says_how_to_make_one(postgres: PostgresBackend) -> None:
    operations = broker_on(postgres).operations
    for call in (operations.pause("q", reason="x"), operations.resume("q", reason="x"), operations.pauses()):
        with pytest.raises(
            OperationsTableError, match=r"control_table=…: make it with make_operations_tables\(metadata\)"
        ):
            await call


Processes = ProcessGroup[KilledSubscriber]


@pytest.fixture
async def processes(postgres: PostgresBackend, tmp_path: Path) -> AsyncIterator[Processes]:
    url = postgres.engine.url.render_as_string(hide_password=False)
    processes = ProcessGroup(KilledSubscriber(url, str(tmp_path / "log"), tables=["control"]))
    yield processes
    await processes.kill_all()


async def test_every_process_obeys(
    postgres: PostgresBackend, operations: OutboxOperations, processes: Processes
) -> None:
    orders = processes.orders
    orders.handler_seconds, orders.options = 0.01, {"max_workers": 2}
    for _ in range(3):
        await processes.start()
    rows = 400
    await postgres.insert(*(NewRow(QUEUE, b"%d" % n, key=f"k{n % 40}" if n % 2 else None) for n in range(rows)))
    await until(lambda: len(orders.lines("ended")) > 20)
    await operations.pause(QUEUE, reason="a test")
    await until(lambda: len(orders.lines("queue_paused")) == 3)
    await until(lambda: postgres.one(HELD), lambda held: held == 0)
    ended = len(orders.lines("ended"))
    assert ended < rows
    left = await postgres.one("SELECT count(*) FROM outbox")
    await postgres.insert(NewRow(QUEUE, b"later"))  # and a notification
    assert await postgres.one(HELD) == 0
    assert isinstance(left, int)
    assert left == rows - ended
    await operations.resume(QUEUE, reason="the test is over")
    await until_empty(postgres)
    assert sorted(orders.lines("ended")) == sorted([*map(str, range(rows)), "later"])


async def test_a_handler_may_pause_its_own_queue(postgres: PostgresBackend, control: Table) -> None:
    records = Records()
    broker, handled = broker_on(postgres, records, control_table=control), list[bytes]()

    @broker.subscriber("q", max_workers=1)
    async def handle(message: OutboxMessage) -> None:
        handled.append(message.body)
        await broker.operations.pause("q", by="the handler", reason="a destination is closed")
        await until(lambda: records.named("queue_paused"))

    await postgres.insert(NewRow("q", b"1"), NewRow("q", b"2"))
    async with started(broker):
        await until(lambda: postgres.one("SELECT count(*) FROM outbox"), lambda left: left == 1)
        await until(lambda: postgres.one(HELD), lambda held: held == 0)
        assert len(handled) == 1
