"""Batch handlers, wherever a broker runs: in tests, behind routers, under FastAPI."""

from typing import Annotated, Any

import pytest
from fastapi import Depends
from pydantic import BaseModel, ValidationError
from sqlalchemy import text

from faststream_outbox import NoRetry, OutboxRouter, TestOutboxBroker
from faststream_outbox.annotations import OutboxBatchMessage
from faststream_outbox.fastapi import OutboxBatchMessage as FastAPIBatch
from faststream_outbox.fastapi import OutboxSession as FastAPISession
from faststream_outbox.router import OutboxRoute
from tests.fastapi.applications import router_in
from tests.faststream.environments import Inbox, MemoryWorld, PostgresWorld, World


class Order(BaseModel):
    number: int


async def test_a_list_is_validated(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("orders", batch=True)
    async def handle(orders: list[Order], batch: OutboxBatchMessage) -> None:
        assert [message.message_id for message in batch.messages] == [str(row.id) for row in batch.deliveries]
        inbox.put(orders)

    async with world.running(broker):
        await world.publish(broker.publish_batch, {"number": "1"}, {"number": 2}, queue="orders")
        assert await inbox.next() == [Order(number=1), Order(number=2)]
        await world.drained()


async def test_one_message_is_a_list_of_one(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("orders", batch=True)
    async def handle(numbers: list[int]) -> None:
        inbox.put(numbers)

    async with world.running(broker):
        await world.publish(broker.publish, 1, queue="orders")
        assert await inbox.next() == [1]


async def test_a_batch_is_chained(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.publisher("sums")
    @broker.subscriber("orders", batch=True)
    async def handle(numbers: list[int]) -> int:
        return sum(numbers)

    @broker.subscriber("sums")
    async def collect(total: int) -> None:
        inbox.put(total)

    async with world.running(broker):
        await world.publish(broker.publish_batch, 1, 2, 3, queue="orders")
        assert await inbox.next() == 6
        await world.drained()


async def test_routers_take_batches(world: World, inbox: Inbox) -> None:
    async def handle(numbers: list[int]) -> None:
        inbox.put(numbers)

    router = OutboxRouter(prefix="shop.", handlers=[OutboxRoute(handle, "orders", batch=True, max_records=2)])
    broker = world.broker(routers=[router])
    async with world.running(broker):
        await world.publish(broker.publish_batch, 1, 2, 3, queue="shop.orders")
        assert await inbox.take(2) == [[1, 2], [3]]


async def test_fastapi_takes_batches(world: World, inbox: Inbox) -> None:
    router = router_in(world)

    async def currency() -> str:
        return "EUR"

    @router.subscriber("orders", batch=True)
    async def handle(orders: list[Order], batch: FastAPIBatch, unit: Annotated[str, Depends(currency)]) -> None:
        inbox.put((orders, len(batch.messages), unit))

    async with world.running(router.broker):
        await world.publish(router.broker.publish_batch, {"number": 1}, {"number": 2}, queue="orders")
        assert await inbox.next() == ([Order(number=1), Order(number=2)], 2, "EUR")
        await world.drained()


async def test_fastapi_gives_sessions(real: PostgresWorld) -> None:
    world = real
    router = router_in(world)
    await world.backend.run("CREATE TABLE effects (number int)")

    async def write(session: FastAPISession) -> Any:
        return lambda number: session.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})

    @router.subscriber("orders", retry_strategy=NoRetry())
    async def handle(number: int, session: FastAPISession, write: Annotated[Any, Depends(write)]) -> None:
        await write(number)
        await session.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number + 100})
        if number == 2:
            raise ValueError

    async with world.running(router.broker):
        await world.publish(router.broker.publish_batch, 1, 2, queue="orders")
        await world.drained()
    found = await world.backend.run("SELECT number FROM effects ORDER BY 1")
    assert [number for (number,) in found] == [1, 101]
    assert router.broker.subscribers[0].shares_transactions  # type: ignore[attr-defined] # ours have it


async def test_the_test_broker_gives_a_batch_to_one_call(memory: MemoryWorld) -> None:
    broker = memory.broker()

    @broker.publisher("sums")
    @broker.subscriber("orders", batch=True, max_records=2)
    async def handle(orders: list[Order]) -> int:
        return len(orders)

    async with TestOutboxBroker(broker) as test_broker:
        await test_broker.publish_batch({"number": 1}, {"number": 2}, {"number": 3}, queue="orders")
        assert [call.args for call in handle.mock.call_args_list] == [
            ([{"number": 1}, {"number": 2}],),
            ([{"number": 3}],),
        ]
        with pytest.raises(ValidationError):
            await test_broker.publish_batch({"number": 1}, {"number": "x"}, queue="orders")
        rows = [row for row in test_broker.fake_client.rows if row.queue == "orders"]
        assert [row.attempts_count for row in rows] == [1, 1]


async def test_the_test_broker_halves_with_its_loops() -> None:
    world = MemoryWorld(run_loops=True)
    broker = world.broker()
    seen = list[list[int]]()

    @broker.subscriber("orders", batch=True, retry_strategy=NoRetry())
    async def handle(numbers: list[int]) -> None:
        seen.append(numbers)
        if 3 in numbers:
            raise ValueError

    async with TestOutboxBroker(broker, run_loops=True) as test_broker:
        await test_broker.publish_batch(0, 1, 2, 3, queue="orders")
        world._client = test_broker.fake_client
        await world.drained()
        assert [dead.row.payload for dead in test_broker.fake_client.dlq_rows] == [b"3"]
    assert [numbers for numbers in seen if 3 in numbers] == [[0, 1, 2, 3], [2, 3], [3]]
