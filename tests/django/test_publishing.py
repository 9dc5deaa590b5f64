"""`publish` inside `transaction.atomic()`: the row, the rules, and the wake-up."""

import asyncio
import contextlib
import json
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connection, connections, transaction
from django.test import AsyncClient, Client, override_settings
from django.test.utils import CaptureQueriesContext
from sqlalchemy import MetaData, create_engine, make_url
from sqlalchemy.orm import Session

from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.django import aatomic, apublish, database_url, make_broker, publish, publish_batch
from faststream_outbox.django.database import tables
from faststream_outbox.django.models import Message
from faststream_outbox.embedded import Database


def rows(connection: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT queue, entity_key, payload, headers::text FROM outbox ORDER BY id")
        return [
            (queue, key, bytes(payload), json.loads(headers or "null"))
            for queue, key, payload, headers in cursor.fetchall()
        ]


JSON = {"content-type": "application/json"}


def test_a_message_is_committed_with_its_order(project: Any) -> None:
    client = Client(raise_request_exception=False)
    assert client.get("/orders/", {"product": "tea"}).json() == {"id": 1}
    assert client.get("/orders/", {"product": ""}).status_code == 500
    assert rows(project) == [("orders", "tea", b'{"order_id":1}', JSON)]


@pytest.mark.usefixtures("project")
async def test_a_message_of_an_async_view_is_committed_with_its_order() -> None:
    client = AsyncClient(raise_request_exception=False)
    assert (await client.get("/async-orders/", {"product": "tea"})).json() == {"id": 1}
    assert (await client.get("/async-orders/", {"product": ""})).status_code == 500

    assert await sync_to_async(rows)(connection) == [("orders", None, b'{"order_id":1}', JSON)]
    await sync_to_async(connections.close_all)()


def test_a_savepoint_takes_its_messages_with_it(project: Any) -> None:
    with transaction.atomic():
        publish(1, queue="q")
        with contextlib.suppress(ValueError), transaction.atomic():
            publish(2, queue="q")
            raise ValueError
        publish(3, queue="q")
    assert [payload for _, _, payload, _ in rows(project)] == [b"1", b"3"]


@pytest.mark.usefixtures("project")
async def test_outside_a_transaction_it_is_refused() -> None:
    for refused in (lambda: publish(1, queue="q"), lambda: publish_batch(1, queue="q")):
        with pytest.raises(RuntimeError, match=r"outside a transaction.*inside transaction\.atomic"):
            await sync_to_async(refused)()
    with pytest.raises(RuntimeError, match="outside a transaction"):
        await apublish(1, queue="q")
    await sync_to_async(connections.close_all)()


def test_a_transaction_that_the_program_opened_by_hand_is_one(project: Any) -> None:
    project.set_autocommit(False)
    try:
        publish(1, queue="q")
        project.commit()
    finally:
        project.set_autocommit(True)
    assert len(rows(project)) == 1


def test_the_row_is_that_of_a_broker(project: Any, migrated: Database) -> None:
    given: dict[str, Any] = {
        "headers": {"a": 1},
        "correlation_id": "c",
        "reply_to": "answers",
        "key": "k",
        "timer_id": None,
        "activate_in": timedelta(hours=1),
    }
    with transaction.atomic():
        publish({"id": 1}, "orders", **given)

    engine = create_engine(migrated.url("psycopg"))
    with Session(engine) as session, session.begin():
        OutboxBroker(outbox_table=tables()["outbox_table"]).publish_sync({"id": 1}, "orders", session=session, **given)
    engine.dispose()
    with project.cursor() as cursor:
        cursor.execute(
            "SELECT queue, entity_key, payload, headers, timer_id, attempts_count, "
            "extract(epoch FROM next_attempt_at - created_at)::int FROM outbox ORDER BY id"
        )
        theirs, ours = cursor.fetchall()
    assert [bytes(each) if isinstance(each, memoryview) else each for each in theirs] == [
        bytes(each) if isinstance(each, memoryview) else each for each in ours
    ]


def test_a_timer_waits_once_and_can_be_extended(project: Any) -> None:
    def due() -> Any:
        with project.cursor() as cursor:
            cursor.execute("SELECT next_attempt_at FROM outbox")
            return cursor.fetchall()

    hour = timedelta(hours=1)
    with transaction.atomic():
        assert publish(1, queue="q", timer_id="t", activate_in=hour) == 1
        first = due()
        assert publish(1, queue="q", timer_id="t", activate_in=2 * hour) is None
        assert due() == first
        assert publish(1, queue="q", timer_id="t", activate_in=2 * hour, timer_conflict="extend") is None
        assert due() > first


def test_a_batch_is_one_statement(project: Any) -> None:
    with CaptureQueriesContext(project) as queries, transaction.atomic():
        ids = publish_batch({"a": 1}, b"\xff", "text", queue="q", keys=["k", None, "l"])
        assert publish_batch(queue="q") == []
    assert ids == [1, 2, 3]
    assert len([each for each in queries if "INSERT" in each["sql"]]) == 1
    assert [(key, payload) for _, key, payload, _ in rows(project)] == [
        ("k", b'{"a":1}'),
        (None, b"\xff"),
        ("l", b"text"),
    ]
    with transaction.atomic():
        with pytest.raises(ValueError, match="keys has 1 entries for 2 messages"):
            publish_batch(1, 2, queue="q", keys=["k"])
        with pytest.raises(TypeError, match="keys is the string 'kl': give a list"):
            publish_batch(1, 2, queue="q", keys="kl")


def test_the_rows_of_a_batch_are_those_of_single_messages(project: Any) -> None:
    given: dict[str, Any] = {"headers": {"a": 1}, "correlation_id": "c", "reply_to": "answers"}
    with transaction.atomic():
        publish_batch(1, queue="q", **given)
        publish(1, queue="q", **given)
    batch, single = rows(project)
    assert batch == single


def test_values_are_checked_before_they_abort_the_transaction(project: Any) -> None:
    with transaction.atomic():
        mistakes: list[tuple[str, dict[str, Any]]] = [
            ("queue is empty", {"queue": ""}),
            ("queue has 300 characters", {"queue": "q" * 300}),
            ("key holds a NUL", {"queue": "q", "key": "\x00"}),
            ("give a timer_id", {"queue": "q", "timer_conflict": "extend"}),
        ]
        for error, wrong in mistakes:
            with pytest.raises(ValueError, match=error):
                publish(1, **wrong)
        publish(2, queue="q")
    assert len(rows(project)) == 1


def test_a_key_is_locked_to_the_commit(project: Any, migrated: Database) -> None:
    held = (
        "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE d.datname = current_database() AND locktype = 'advisory'"
    )
    with psycopg.connect(migrated.dsn, autocommit=True) as watch:
        with transaction.atomic():
            publish(1, queue="q", key="k")
            assert watch.execute(held).fetchone() == (1,)
        assert watch.execute(held).fetchone() == (0,)
    assert len(rows(project)) == 1


@pytest.mark.parametrize("after_commit", [False, True], ids=["with the commit", "after the commit"])
def test_subscribers_are_notified_once_of_what_is_committed(
    project: Any, migrated: Database, after_commit: bool
) -> None:
    with (
        psycopg.connect(migrated.dsn, autocommit=True) as listener,
        override_settings(OUTBOX={"after_commit": after_commit}),
    ):
        listener.execute("LISTEN outbox_outbox")
        with contextlib.suppress(ValueError), transaction.atomic():
            publish(1, queue="rolled-back")
            raise ValueError
        with CaptureQueriesContext(project) as queries, transaction.atomic():
            publish(1, queue="a")
            publish(2, queue="a")
            publish(3, queue="b")
        heard = [each.payload for each in listener.notifies(timeout=10, stop_after=2)]
    assert sorted(heard) == ["a", "b"]
    inserts = [each["sql"] for each in queries if "INSERT" in each["sql"]]
    assert [("CASE WHEN true" in each) for each in inserts] == [not after_commit] * 3


def test_a_database_that_is_not_postgres_is_refused(project: Any) -> None:
    project.vendor = "sqlite"
    try:
        with pytest.raises(RuntimeError, match="is sqlite, and an outbox needs Postgres"):
            publish(1, queue="q")
    finally:
        del project.vendor


def test_the_tables_of_another_alias_are_made_by_hand(
    project: Any, outbox_postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    del project
    url = make_url(outbox_postgres.dsn)
    others = {"NAME": url.database, "USER": url.username, "PASSWORD": url.password, "HOST": url.host, "PORT": url.port}
    monkeypatch.setitem(connections.settings, "other", {**connections.settings["default"], **others})
    metadata = MetaData()
    make_outbox_table(metadata)
    engine = create_engine(database_url("other"))
    metadata.create_all(engine)
    engine.dispose()
    try:
        with transaction.atomic("other"):
            assert publish(1, queue="q", using="other") == 1
        assert len(rows(connections["other"])) == 1
    finally:
        connections["other"].close()
        del connections["other"]


async def place_one() -> None:
    async with aatomic():
        await apublish(1, queue="q")


async def test_a_task_that_is_cancelled_while_it_opens_a_transaction_ends_it(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del project
    gate, busy, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()
    original = transaction.Atomic.__enter__

    def slow(atomic: Any) -> None:
        loop.call_soon_threadsafe(busy.set)
        assert gate.wait(30)
        original(atomic)

    async with ThreadSensitiveContext():
        monkeypatch.setattr(transaction.Atomic, "__enter__", slow)
        task = asyncio.create_task(place_one())
        await busy.wait()
        await cancel(task, gate)
        assert not await sync_to_async(lambda: connection.in_atomic_block)()
        await sync_to_async(connections.close_all)()


async def test_a_task_that_is_cancelled_before_it_ends_a_transaction_ends_it(project: Any) -> None:
    del project
    gate, left = threading.Event(), asyncio.Event()
    waiting: list[asyncio.Task[bool]] = []

    async def place() -> None:
        async with aatomic():
            await apublish(1, queue="q")
            # Keeps the thread busy, so that the end of the transaction waits for it.
            waiting.append(asyncio.create_task(sync_to_async(gate.wait)(30)))
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(left.set)

    async with ThreadSensitiveContext():
        task = asyncio.create_task(place())
        await left.wait()
        await cancel(task, gate)
        assert await waiting[0]
        assert not await sync_to_async(lambda: connection.in_atomic_block)()
        await sync_to_async(connections.close_all)()


async def cancel(task: asyncio.Task[None], gate: threading.Event) -> None:
    task.cancel()
    await asyncio.sleep(0)  # delivers the cancellation
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_second_task_cannot_publish_into_the_transaction_of_the_first(project: Any) -> None:
    del project
    opened, refused = asyncio.Event(), asyncio.Event()

    async def roll_back() -> None:
        async with aatomic():
            await apublish(1, queue="q")
            opened.set()
            await refused.wait()
            raise ValueError("rolled back")

    async def publish_beside() -> None:
        await opened.wait()
        with pytest.raises(RuntimeError, match="Another task has opened a transaction"):
            await apublish(1, queue="q")
        with pytest.raises(RuntimeError, match="Another task has opened a transaction"):
            async with aatomic():
                pass
        refused.set()

    async def publish_within() -> None:
        # A task that begins inside belongs to it.
        async with aatomic():  # wait_for has tasks of its own in older Pythons
            await asyncio.wait_for(asyncio.create_task(within()), 30)

    async def within() -> None:
        async with aatomic():
            await apublish(1, queue="within")

    async with ThreadSensitiveContext():
        with pytest.raises(ValueError, match="rolled back"):
            await asyncio.gather(roll_back(), publish_beside())
        await refused.wait()
        await publish_within()
        assert [message.queue async for message in Message.objects.all()] == ["within"]
        await sync_to_async(connections.close_all)()


async def test_a_broker_handles_what_django_publishes(project: Any) -> None:
    del project
    broker, handled = make_broker(logger=None), asyncio.Queue[int]()

    @broker.subscriber("orders")
    async def handle(order_id: int) -> None:
        handled.put_nowait(order_id)

    def place() -> None:
        with transaction.atomic():
            publish(7, queue="orders")
        connections.close_all()

    await broker.start()
    try:
        await sync_to_async(place)()
        async with asyncio.timeout(30):
            assert await handled.get() == 7
    finally:
        await broker.stop()
        await broker.client.store.engine.dispose()  # type: ignore[attr-defined]
