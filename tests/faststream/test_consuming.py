"""Consuming, as users of FastStream's other brokers know it."""

import dataclasses
from typing import Any

import pydantic
import pytest
from faststream import Context, Depends, FastStream
from faststream.exceptions import StopConsume

from faststream_outbox import RetryStrategyProto
from faststream_outbox.annotations import OutboxMessage
from tests.faststream.environments import Environment, Received
from tests.waiting import until


class Order(pydantic.BaseModel):
    number: int


@dataclasses.dataclass
class Parcel:
    weight: float


async def test_one_handler_of_several_queues(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    @broker.subscriber(["orders", "returns"])
    async def handle(body: str, queue: str = Context("message.raw_message.queue")) -> None:
        received.put((queue, body))

    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="orders")
        await environment.publish(broker.publish, "b", queue="returns")
        assert sorted(await received.take(2)) == [("orders", "a"), ("returns", "b")]
        await environment.drained()


async def test_one_function_subscribed_twice(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    @broker.subscriber("orders")
    @broker.subscriber("returns")
    async def handle(body: str) -> None:
        received.put(body)

    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="orders")
        await environment.publish(broker.publish, "b", queue="returns")
        assert sorted(await received.take(2)) == ["a", "b"]


async def test_each_queue_has_its_own_handler(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    @broker.subscriber("orders")
    def handle_order(body: str) -> None:  # a plain function will do
        received.put(("order", body))

    @broker.subscriber("returns")
    async def handle_return(body: str) -> None:
        received.put(("return", body))

    async with environment.running(broker):
        await environment.publish(broker.publish, "x", queue="returns")
        await environment.publish(broker.publish, "y", queue="orders")
        assert sorted(await received.take(2)) == [("order", "y"), ("return", "x")]


async def test_a_filter_chooses_the_handler(environment: Environment, received: Received) -> None:
    broker = environment.broker()
    subscriber = broker.subscriber("orders")

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def handle_json(body: dict[str, int]) -> None:
        received.put(("json", body))

    @subscriber
    async def handle_rest(body: str) -> None:
        received.put(("rest", body))

    async with environment.running(broker):
        await environment.publish(broker.publish, {"n": 1}, queue="orders")
        await environment.publish(broker.publish, "text", queue="orders")
        assert sorted(await received.take(2), key=str) == [("json", {"n": 1}), ("rest", "text")]
        await environment.drained()


async def test_a_filter_of_the_subscriber_is_that_of_its_handlers(looping: Environment, received: Received) -> None:
    broker = looping.broker()

    async def wanted(message: Any) -> bool:
        return message.headers.get("wanted") is True

    @broker.subscriber("orders", filter=wanted)
    async def handle(body: str) -> None:
        received.put(body)

    async with looping.running(broker):
        await looping.publish(broker.publish, "no", queue="orders")
        await looping.publish(broker.publish, "yes", queue="orders", headers={"wanted": True})
        assert await received.next() == "yes"
        # A message that nobody wants is not lost: it is retried, and told of.
        assert [row.payload for row in await looping.rows() if row.payload == b"no"] == [b"no"]


async def test_bodies_are_validated(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    @broker.subscriber("orders")
    async def handle_order(order: Order) -> None:
        received.put(order)

    @broker.subscriber("parcels")
    async def handle_parcel(parcel: Parcel) -> None:
        received.put(parcel)

    @broker.subscriber("fields")
    async def handle_fields(a: int, b: float) -> None:
        received.put((a, b))

    async with environment.running(broker):
        await environment.publish(broker.publish, {"number": "7"}, queue="orders")
        assert await received.next() == Order(number=7)
        await environment.publish(broker.publish, {"weight": 1.5}, queue="parcels")
        assert await received.next() == Parcel(weight=1.5)
        await environment.publish(broker.publish, {"a": 1, "b": 2}, queue="fields")
        assert await received.next() == (1, 2.0)


async def test_nothing_is_cast_without_a_serializer(environment: Environment, received: Received) -> None:
    broker = environment.broker(serializer=None)

    @broker.subscriber("orders")
    async def handle(order: Order, number: int = Depends(lambda: "7"), broker: Any = Context()) -> None:  # noqa: B008
        received.put((order, number, broker))

    async with environment.running(broker):
        await environment.publish(broker.publish, {"number": 1}, queue="orders")
        assert await received.next() == ({"number": 1}, "7", broker)


async def test_without_apply_types_a_handler_gets_the_message(environment: Environment, received: Received) -> None:
    broker = environment.broker(apply_types=False)

    @broker.subscriber("orders")
    async def handle(body: Any) -> None:
        received.put(body)

    async with environment.running(broker):
        await environment.publish(broker.publish, {"number": 1}, queue="orders")
        assert await received.next() == {"number": 1}


async def test_consumers_share_a_queue(looping: Environment, received: Received) -> None:
    first, second = looping.broker(), looping.broker()

    @first.subscriber("orders", max_workers=2)
    @second.subscriber("orders", max_workers=2)
    async def handle(body: int) -> None:
        received.put(body)

    async with looping.running(first, second):
        for number in range(20):
            await looping.publish(first.publish, number, queue="orders")
        await looping.drained()
    assert sorted(await received.take(20)) == list(range(20))
    assert received.empty


async def test_two_brokers_in_one_application(environment: Environment, received: Received) -> None:
    first, second = environment.broker(), environment.broker()

    @first.subscriber("orders")
    @second.subscriber("returns")
    async def handle(body: str) -> None:
        received.put(body)

    @first.subscriber("in")
    @second.publisher("out")
    async def pass_on(body: str) -> str:
        return body

    @first.subscriber("out")
    async def take(body: str) -> None:
        received.put(body)

    FastStream(first, second)
    async with environment.running(first, second):
        await environment.publish(first.publish, "a", queue="orders")
        await environment.publish(second.publish, "b", queue="returns")
        assert sorted(await received.take(2)) == ["a", "b"]
        await environment.publish(first.publish, "c", queue="in")
        assert await received.next() == "c"


async def test_a_subscriber_begins_and_ends_while_the_broker_runs(looping: Environment, received: Received) -> None:
    broker = looping.broker()

    async def handle(body: str) -> None:
        received.put(body)

    async with looping.running(broker):
        subscriber = broker.subscriber("late", persistent=False)
        subscriber(handle)
        await subscriber.start()
        await looping.publish(broker.publish, "a", queue="late")
        assert await received.next() == "a"
        await looping.drained()
        await subscriber.stop()
        await looping.publish(broker.publish, "b", queue="late")
        assert [row.payload for row in await looping.rows()] == [b"b"]
        await subscriber.start()
        assert await received.next() == "b"
        await subscriber.stop()


async def test_stop_consume_ends_the_subscriber_and_loses_nothing(looping: Environment, received: Received) -> None:
    broker = looping.broker()
    subscriber = broker.subscriber("orders")

    @subscriber
    async def handle(body: str) -> None:
        received.put(body)
        raise StopConsume

    @broker.subscriber("others")
    async def handle_other(body: str) -> None:
        received.put(body)

    async with looping.running(broker):
        await looping.publish(broker.publish, "a", queue="orders")
        assert await received.next() == "a"

        await until(lambda: not subscriber.running)
        await looping.publish(broker.publish, "b", queue="orders")
        await looping.publish(broker.publish, "c", queue="others")
        assert await received.next() == "c"
        assert received.empty
        assert [row.payload for row in await looping.rows() if row.queue == "orders"] == [b"a", b"b"]


class DelayByShape:
    def get_next_attempt_delay(self, **_attempt: Any) -> float | None:
        return 0.01


class DelayBySubclass(RetryStrategyProto):
    def get_next_attempt_delay(self, **_attempt: Any) -> float | None:
        return 0.01


class NoDelay(RetryStrategyProto):
    def get_next_attempt_delay(self, **_attempt: Any) -> float | None:
        return float("nan")


@pytest.mark.parametrize("strategy", [DelayByShape(), DelayBySubclass(), NoDelay()], ids=lambda s: type(s).__name__)
async def test_a_strategy_with_a_delay_alone_loses_nothing(
    looping: Environment, received: Received, strategy: Any
) -> None:
    broker = looping.broker()

    @broker.subscriber("q", retry_strategy=strategy)
    async def handle(message: OutboxMessage) -> None:
        received.put(message.raw_message.attempts_count)
        if message.raw_message.attempts_count == 0:
            raise ValueError

    async with looping.running(broker):
        await looping.publish(broker.publish, 1, queue="q")
        assert await received.take(2) == [0, 1]
        await looping.drained()
