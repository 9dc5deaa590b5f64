"""Publishing, as users of FastStream's other brokers know it."""

import dataclasses
import datetime as dt
import json
from typing import Any

import pydantic
import pytest

from faststream_outbox.annotations import OutboxMessage
from tests.faststream.environments import Inbox, World

NOON = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)


class Order(pydantic.BaseModel):
    number: int


@dataclasses.dataclass
class Parcel:
    weight: float


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        ("hello", str, "hello"),
        (b"hello", bytes, b"hello"),
        (1, int, 1),
        (1, float, 1.0),
        (1.5, float, 1.5),
        (False, bool, False),
        (None, bytes, b""),
        ({"m": 1}, dict[str, int], {"m": 1}),
        ([1, 2, 3], list[int], [1, 2, 3]),
        (NOON, dt.datetime, NOON),
        (Order(number=1), Order, Order(number=1)),
        (Order(number=1), dict, {"number": 1}),
        ({"number": 1}, Order, Order(number=1)),
        (json.dumps({"number": 1}).encode(), Order, Order(number=1)),
        (Parcel(1.5), Parcel, Parcel(1.5)),
        (Parcel(1.5), dict, {"weight": 1.5}),
        ({"weight": 1.5}, Parcel, Parcel(1.5)),
    ],
    ids=str,
)
async def test_bodies_arrive(world: World, inbox: Inbox, body: Any, kind: Any, expected: Any) -> None:
    broker = world.broker()

    async def handle(body: Any) -> None:
        inbox.put(body)

    handle.__annotations__["body"] = kind
    broker.subscriber("orders")(handle)
    async with world.running(broker):
        await world.publish(broker.publish, body, queue="orders")
        assert await inbox.next() == expected


async def test_a_dict_and_a_list_spread_over_parameters(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("fields")
    async def handle_fields(a: int, b: int) -> None:
        inbox.put((a, b))

    @broker.subscriber("items")
    async def handle_items(a: int, b: int, *rest: tuple[int, ...]) -> None:  # as FastDepends reads it
        inbox.put((a, b, rest))

    async with world.running(broker):
        await world.publish(broker.publish, {"a": 1, "b": 2.0}, queue="fields")
        assert await inbox.next() == (1, 2)
        await world.publish(broker.publish, [1, 2, 3, 4], queue="items")
        assert await inbox.next() == (1, 2, (3, 4))


async def test_headers_and_correlation_id_arrive(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("orders")
    async def handle(_body: str, message: OutboxMessage) -> None:
        inbox.put((message.headers["h"], message.correlation_id, message.message_id))

    async with world.running(broker):
        row_id = await world.publish(broker.publish, "a", queue="orders", headers={"h": [1]}, correlation_id="c")
        assert await inbox.next() == ([1], "c", str(row_id))
        row_id = await world.publish(broker.publish, "a", queue="orders", headers={"h": None})
        assert await inbox.next() == (None, str(row_id), str(row_id))


async def test_a_batch_is_one_message_each(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("orders")
    async def handle(body: Any, message: OutboxMessage) -> None:
        inbox.put((message.raw_message.id, body, message.headers["h"]))

    async with world.running(broker):
        ids = await world.publish(broker.publish_batch, 1, "two", {"n": 3}, queue="orders", headers={"h": "1"})
        assert sorted(await inbox.take(3)) == list(zip(ids, [1, "two", {"n": 3}], ["1"] * 3, strict=True))
        assert await world.publish(broker.publish_batch, queue="orders") == []
