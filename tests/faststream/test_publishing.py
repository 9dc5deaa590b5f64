"""Publishing, as users of FastStream's other brokers know it."""

import dataclasses
import datetime as dt
import json
import uuid
from typing import Any

import pydantic
import pytest
from faststream import BaseMiddleware

from faststream_outbox import OutboxResponse, OutboxRouter
from faststream_outbox.annotations import OutboxMessage
from tests.faststream.environments import Environment, PostgresEnvironment, Received

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
async def test_bodies_arrive(environment: Environment, received: Received, body: Any, kind: Any, expected: Any) -> None:
    broker = environment.broker()

    async def handle(body: Any) -> None:
        received.put(body)

    handle.__annotations__["body"] = kind
    broker.subscriber("orders")(handle)
    async with environment.running(broker):
        await environment.publish(broker.publish, body, queue="orders")
        assert await received.next() == expected


async def test_a_dict_and_a_list_spread_over_parameters(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    @broker.subscriber("fields")
    async def handle_fields(a: int, b: int) -> None:
        received.put((a, b))

    @broker.subscriber("items")
    async def handle_items(a: int, b: int, *rest: tuple[int, ...]) -> None:  # as FastDepends reads it
        received.put((a, b, rest))

    async with environment.running(broker):
        await environment.publish(broker.publish, {"a": 1, "b": 2.0}, queue="fields")
        assert await received.next() == (1, 2)
        await environment.publish(broker.publish, [1, 2, 3, 4], queue="items")
        assert await received.next() == (1, 2, (3, 4))


async def test_headers_and_correlation_id_arrive(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    @broker.subscriber("orders")
    async def handle(_body: str, message: OutboxMessage) -> None:
        received.put((message.headers["h"], message.correlation_id, message.message_id))

    async with environment.running(broker):
        row_id = await environment.publish(broker.publish, "a", queue="orders", headers={"h": [1]}, correlation_id="c")
        assert await received.next() == ([1], "c", str(row_id))
        row_id = await environment.publish(broker.publish, "a", queue="orders", headers={"h": None})
        assert await received.next() == (None, str(row_id), str(row_id))


class Numbers:
    """An id generator: "id-1", "id-2" and so on."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        return f"id-{self.made}"


async def test_an_id_generator_makes_the_correlation_ids_that_nobody_gave(
    environment: Environment, received: Received
) -> None:
    class Seeing(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            received.put(cmd.correlation_id)
            return await call_next(cmd)

    router, ids = OutboxRouter(), Numbers()
    of_router = router.publisher("orders")
    broker = environment.broker(id_generator=ids, routers=[router], middlewares=[Seeing])
    labelled = broker.publisher("orders", headers={"correlation_id": "the publisher's"})
    arrived: list[tuple[int, str]] = []

    @broker.subscriber("orders")
    async def handle(message: OutboxMessage) -> None:
        arrived.append((message.raw_message.id, message.correlation_id))

    async with environment.running(broker):
        await environment.publish(broker.publish, 1, queue="orders")
        await environment.publish(broker.publish_batch, 1, 2, queue="orders")  # one for all, as on other brokers
        await environment.publish(of_router.publish, 1)
        assert ids.made == 3
        await environment.publish(broker.publish, 1, queue="orders", correlation_id="mine")
        await environment.publish(broker.publish, 1, queue="orders", headers={"correlation_id": "mine too"})
        await environment.publish(broker.publish_batch, queue="orders")
        await environment.publish(labelled.publish, 1)
        assert ids.made == 3
        await environment.drained()
    expected = ["id-1", "id-2", "id-2", "id-3", "mine", "mine too", "the publisher's"]
    assert [correlation_id for _, correlation_id in sorted(arrived)] == expected
    assert await received.take(4) == ["id-1", "id-2", "id-3", "mine"]  # middlewares see them


async def test_answers_keep_the_correlation_id_that_was_generated(environment: Environment, received: Received) -> None:
    ids = Numbers()
    broker = environment.broker(id_generator=ids)

    @broker.publisher("next")
    @broker.subscriber("orders")
    async def handle(_body: str) -> OutboxResponse:
        return OutboxResponse("an answer", queue="named")

    @broker.subscriber(["next", "named", "replies"])
    async def collect(_body: str, message: OutboxMessage) -> None:
        received.put(message.correlation_id)

    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="orders", reply_to="replies")
        assert await received.take(3) == ["id-1"] * 3
    assert ids.made == 1


async def test_an_id_generator_is_asked_without_an_event_loop_too(real: PostgresEnvironment) -> None:
    broker = real.broker(id_generator=Numbers())
    async with real.backend.transaction() as session:
        await session.run_sync(lambda session: broker.publish_sync(1, "orders", session=session))
    [row] = await real.rows()
    assert row.headers == {"content-type": "application/json", "correlation_id": "id-1"}


async def test_an_id_generator_returns_text(environment: Environment) -> None:
    broker = environment.broker(id_generator=uuid.uuid4)
    async with environment.running(broker):
        with pytest.raises(TypeError, match=r"id_generator returned UUID\(.*return a str"):
            await environment.publish(broker.publish, 1, queue="orders")


async def test_the_queue_may_be_positional(environment: Environment, received: Received) -> None:
    broker = environment.broker()
    publisher = broker.publisher("usual")

    @broker.subscriber(["orders", "special", "usual"])
    async def handle(body: int, message: OutboxMessage) -> None:
        received.put((body, message.raw_message.queue))

    async with environment.running(broker):
        await environment.publish(broker.publish, 1, "orders")
        await environment.publish(publisher.publish, 2, "special")
        await environment.publish(publisher.publish, 3)
        with pytest.raises(ValueError, match="queue is empty"):
            await environment.publish(broker.publish, 4)
        assert sorted(await received.take(3)) == [(1, "orders"), (2, "special"), (3, "usual")]


async def test_a_batch_codec_encodes_a_batch_at_once(environment: Environment, received: Received) -> None:
    class Codec:
        async def encode(self, body: Any, serializer: Any = None) -> tuple[bytes, str | None]:
            del serializer
            return f"one {body}".encode(), None

        async def decode(self, message: Any) -> Any:
            return message.body.decode()

        async def encode_batch(self, bodies: Any, serializer: Any = None) -> list[tuple[bytes, str | None]]:
            del serializer
            bodies = list(bodies)
            received.put(bodies)
            return [(f"{body} of {len(bodies)}".encode(), f"text/{body}") for body in bodies if body != "lost"]

        async def decode_batch(self, message: Any) -> Any:
            return [body.decode() for body in message.body]

    broker = environment.broker(codec=Codec())
    async with environment.running(broker):
        await environment.publish(broker.publish_batch, "a", "b", queue="orders", headers={"h": 1})
        assert await received.next() == ["a", "b"]
        await environment.publish(broker.publish, "c", queue="orders")
        await environment.publish(broker.publish_batch, queue="orders")
        assert received.empty
        with pytest.raises(ValueError, match=r"Codec\.encode_batch returned 1 bodies for 2 messages"):
            await environment.publish(broker.publish_batch, "a", "lost", queue="orders")
        rows = await environment.rows()
    assert [row.payload for row in rows] == [b"a of 2", b"b of 2", b"one c"]
    assert [row.headers for row in rows] == [
        {"h": 1, "content-type": "text/a"},
        {"h": 1, "content-type": "text/b"},
        None,
    ]


async def test_a_batch_is_one_message_each(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    @broker.subscriber("orders")
    async def handle(body: Any, message: OutboxMessage) -> None:
        received.put((message.raw_message.id, body, message.headers["h"]))

    async with environment.running(broker):
        ids = await environment.publish(broker.publish_batch, 1, "two", {"n": 3}, queue="orders", headers={"h": "1"})
        assert sorted(await received.take(3)) == list(zip(ids, [1, "two", {"n": 3}], ["1"] * 3, strict=True))
        assert await environment.publish(broker.publish_batch, queue="orders") == []
