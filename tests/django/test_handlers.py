"""Handlers that use models: each call has connections of Django of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections, transaction

from faststream_outbox import NoRetry, OutboxBroker, TestOutboxBroker
from faststream_outbox.django import aatomic, apublish, make_broker, publish
from faststream_outbox.django.models import DeadLetter, Message
from tests.django.shop.models import Order
from tests.waiting import until


def publish_to(*queues: str, body: int = 1) -> None:
    with transaction.atomic():
        for queue in queues:
            publish(body, queue=queue)
    connections.close_all()


@asynccontextmanager
async def running(broker: OutboxBroker) -> AsyncIterator[None]:
    await broker.start()
    try:
        yield
    finally:
        await broker.stop()
        await broker.client.store.engine.dispose()  # type: ignore[attr-defined]


async def stored(model: Any) -> set[Any]:
    def read() -> set[Any]:
        try:
            return set(model.objects.values_list("product" if model is Order else "queue", flat=True))
        finally:
            connections.close_all()

    return await sync_to_async(read, thread_sensitive=False)()


async def test_a_handler_does_not_write_into_the_transaction_of_another(project: Any) -> None:
    del project
    broker = make_broker(logger=None)
    opened, written = asyncio.Event(), asyncio.Event()

    @broker.subscriber("rolled back", retry_strategy=NoRetry())
    async def fail(_number: int) -> None:
        async with aatomic():
            await Order.objects.acreate(product="rolled back")
            opened.set()
            await written.wait()
            raise ValueError("all of this transaction")

    @broker.subscriber("kept", retry_strategy=NoRetry())
    async def keep(_number: int) -> None:
        await opened.wait()
        await Order.objects.acreate(product="kept")
        async with aatomic():
            await Order.objects.acreate(product="kept with its message")
            await apublish(1, queue="next")
        written.set()

    await sync_to_async(publish_to, thread_sensitive=False)("rolled back", "kept")
    async with running(broker):
        await until(lambda: is_stored(DeadLetter, "rolled back"))
    assert await stored(Order) == {"kept", "kept with its message"}
    assert await stored(Message) == {"next"}


async def test_a_lost_connection_fails_only_the_call_that_had_it(project: Any) -> None:
    del project
    broker = make_broker(logger=None)

    @broker.subscriber("lost", retry_strategy=NoRetry())
    async def lose(_number: int) -> None:
        await Order.objects.acreate(product="before")
        await sync_to_async(terminate)()
        await Order.objects.acreate(product="after")

    @broker.subscriber("next", retry_strategy=NoRetry())
    async def go_on(_number: int) -> None:
        await Order.objects.acreate(product="next")

    async with running(broker):
        await sync_to_async(publish_to, thread_sensitive=False)("lost")
        await until(lambda: is_stored(DeadLetter, "lost"))
        await sync_to_async(publish_to, thread_sensitive=False)("next")
        await until(lambda: is_stored(Order, "next"))
    assert await stored(DeadLetter) == {"lost"}


@pytest.mark.parametrize("plain", [False, True], ids=["async def", "def"])
async def test_nothing_is_left_open(project: Any, *, plain: bool) -> None:
    del project
    broker, pids = make_broker(logger=None), list[int]()

    def handle(_number: int) -> None:
        pids.append(server_process())

    broker.subscriber("q")(handle if plain else sync_to_async(handle))
    await sync_to_async(publish_to, thread_sensitive=False)("q", "q")
    async with running(broker):
        await until(lambda: len(pids) == 2)

        async def closed() -> bool:
            return not await sync_to_async(living, thread_sensitive=False)(pids)

        await until(closed)
    assert len(set(pids)) == 2


async def test_a_def_handler_keeps_its_connection_for_conn_max_age_and_replaces_a_lost_one(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del project
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    broker, pids = make_broker(logger=None), list[int]()

    @broker.subscriber("q", retry_strategy=NoRetry())
    def handle(number: int) -> None:
        pids.append(server_process())
        if number == 2:
            terminate()
            server_process()

    async with running(broker):
        for number in (1, 2, 3):
            await sync_to_async(publish_to, thread_sensitive=False)("q", body=number)
            await until(lambda number=number: len(pids) == number)  # type: ignore[misc]  # mypy infers no default
            await until(nothing_waits)
    assert pids[0] == pids[1] != pids[2]
    assert await stored(DeadLetter) == {"q"}


async def test_a_def_handler_that_other_code_calls_leaves_its_connection_open(project: Any) -> None:
    del project
    broker, pids = make_broker(logger=None), list[int]()

    @broker.subscriber("part")
    def handle_part(_number: int) -> None:
        pids.append(server_process())

    @broker.subscriber("whole")
    def handle_whole(number: int) -> None:
        pids.append(server_process())
        handle_part(number)
        pids.append(server_process())

    await sync_to_async(publish_to, thread_sensitive=False)("whole")
    async with running(broker):
        await until(lambda: len(pids) == 3)
    assert len(set(pids)) == 1


def test_in_a_test_of_django_a_handler_has_the_connection_of_the_test(project: Any) -> None:
    del project
    broker, pids = make_broker(logger=None), list[int]()

    @broker.subscriber("q")
    async def handle(_number: int) -> None:
        pids.append(await sync_to_async(server_process)())

    async def publish_in_memory() -> None:
        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="q")

    own = server_process()
    async_to_sync(publish_in_memory)()
    assert pids == [own]


def server_process() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def living(pids: list[int]) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s)", [pids])
        found = [pid for (pid,) in cursor.fetchall()]
    connections.close_all()
    return found


def terminate() -> None:
    pid = server_process()
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    finally:
        other.close()


async def nothing_waits() -> bool:
    return not await stored(Message)


async def is_stored(model: Any, name: str) -> bool:
    return name in await stored(model)
