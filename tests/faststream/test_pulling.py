"""Taking messages one by one."""

import asyncio
from typing import Any

import pytest

from tests.faststream.environments import World, soon


async def test_get_one(looping: World) -> None:
    broker = looping.broker()
    subscriber = broker.subscriber("orders")
    async with looping.running(broker):
        taking = asyncio.create_task(subscriber.get_one(timeout=20))
        await looping.publish(broker.publish, {"n": 1}, queue="orders", headers={"h": "1"})
        message = await soon(taking)
        assert message is not None
        assert (await message.decode(), message.headers["h"]) == ({"n": 1}, "1")
        await message.ack()
        await looping.drained()


async def test_get_one_of_an_empty_queue(looping: World) -> None:
    broker = looping.broker()
    subscriber = broker.subscriber("orders")
    async with looping.running(broker):
        assert await soon(subscriber.get_one(timeout=0.01)) is None


async def test_get_one_is_refused_where_there_are_handlers(world: World) -> None:
    broker = world.broker()
    subscriber = broker.subscriber("orders")

    @subscriber
    async def handle(body: str) -> None: ...

    async with world.running(broker):
        with pytest.raises(AssertionError):
            await subscriber.get_one(timeout=0.01)


async def test_iteration(looping: World) -> None:
    broker = looping.broker()
    subscriber = broker.subscriber("orders")
    got: list[Any] = []

    async def iterate() -> None:
        async for message in subscriber:
            got.append(await message.decode())
            if len(got) == 3:
                await message.ack()
                break

    async with looping.running(broker):
        iterating = asyncio.create_task(iterate())
        for number in range(3):
            await looping.publish(broker.publish, number, queue="orders")
        await soon(iterating)
        assert got == [0, 1, 2]
        await looping.drained()
