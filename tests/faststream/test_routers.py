"""Routers: prefixes, nesting, what they hand down, and what can be declared on one."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from faststream import AckPolicy, Depends
from faststream.exceptions import SetupError

from faststream_outbox import ConstantRetry, NoRetry, OutboxBroker, OutboxRouter
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.broker.router import OutboxPublisher
from faststream_outbox.fastapi import OutboxRouter as FastAPIRouter
from faststream_outbox.router import OutboxRoute
from tests.faststream.environments import Environment, MemoryEnvironment, Received


async def test_prefixes_add_up(environment: Environment, received: Received) -> None:
    broker = environment.broker()
    outer, inner = OutboxRouter("outer."), OutboxRouter("inner.")

    @inner.subscriber("orders")
    @inner.publisher("done")
    async def handle(body: str) -> str:
        return body

    by_hand = inner.publisher("done")
    outer.include_router(inner, prefix="between.")
    broker.include_router(outer)

    @broker.subscriber("outer.between.inner.done")
    async def collect(body: str) -> None:
        received.put(body)

    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="outer.between.inner.orders")
        assert await received.next() == "a"
        await environment.publish(by_hand.publish, "b")
        assert await received.next() == "b"


async def test_routers_may_come_with_the_broker_and_fill_later(environment: Environment, received: Received) -> None:
    inner = OutboxRouter("inner.")
    broker = environment.broker(routers=[OutboxRouter("outer.", routers=[inner])])

    @inner.subscriber("orders")
    async def handle(body: str) -> None:
        received.put(body)

    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="outer.inner.orders")
        assert await received.next() == "a"


async def test_a_subscriber_of_a_router_begins_while_the_broker_runs(looping: Environment, received: Received) -> None:
    router = OutboxRouter("late.")
    broker = looping.broker(routers=[router])

    async def handle(body: str) -> None:
        received.put(body)

    async with looping.running(broker):
        subscriber = router.subscriber("orders")
        subscriber(handle)
        await subscriber.start()
        await looping.publish(broker.publish, "a", queue="late.orders")
        assert await received.next() == "a"


async def test_routes(environment: Environment, received: Received) -> None:
    async def handle(body: str) -> str:
        return body.upper()

    async def collect(body: str, message: OutboxMessage) -> None:
        received.put((body, message.headers.get("h")))

    router = OutboxRouter(
        "r.",
        handlers=[
            OutboxRoute(handle, "orders", publishers=[OutboxPublisher("done", headers={"h": 1})], max_workers=2),
            OutboxRoute(collect, "done"),
        ],
    )
    broker = environment.broker(routers=[router])
    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="r.orders")
        assert await received.next() == ("A", 1)
        await environment.drained()


async def test_dependencies_are_handed_down(environment: Environment, received: Received) -> None:
    def noting(name: str) -> Any:
        return Depends(lambda: received.put(name))

    broker = environment.broker(dependencies=[noting("broker")])
    router = OutboxRouter(dependencies=[noting("router")])

    @router.subscriber("orders", dependencies=[noting("subscriber")])
    async def handle(body: str) -> None:
        received.put(body)

    broker.include_router(router, dependencies=[noting("include")])
    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="orders")
        assert await received.take(5) == ["broker", "include", "router", "subscriber", "a"]


@pytest.mark.parametrize("of_broker", [True, False])
async def test_the_ack_policy_is_handed_down(looping: Environment, received: Received, of_broker: bool) -> None:
    policy: dict[str, Any] = {"ack_policy": AckPolicy.REJECT_ON_ERROR}
    router = OutboxRouter(**({} if of_broker else policy))
    broker = looping.broker(**(policy if of_broker else {}))

    @router.subscriber("once")
    @router.subscriber("often", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def handle(body: str) -> None:
        received.put(body)
        raise ValueError

    broker.include_router(router)
    async with looping.running(broker):
        await looping.publish(broker.publish, "a", queue="often")
        await looping.publish(broker.publish, "b", queue="once")
        assert sorted(await received.take(2)) == ["a", "b"]
    assert [row.queue for row in await looping.rows()] == ["often"]


async def test_the_ack_policy_of_the_broker_reaches_routers_declared_before(
    environment: Environment, received: Received
) -> None:
    router = OutboxRouter()

    @router.subscriber("orders", retry_strategy=ConstantRetry(delay_seconds=60))
    async def handle(body: str) -> None:
        received.put(body)

    broker = environment.broker(ack_policy=AckPolicy.MANUAL, routers=[router])
    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="orders")
        assert await received.next() == "a"
    # No verdict, no delete.
    assert [row.attempts_count for row in await environment.rows()] == [1]


async def test_a_policy_that_loses_messages_is_refused_wherever_it_comes_from(memory: MemoryEnvironment) -> None:
    router = OutboxRouter()

    @router.subscriber("orders")
    async def handle(body: str) -> None: ...

    with pytest.raises(SetupError, match="ACK_FIRST"):
        memory.broker(ack_policy=AckPolicy.ACK_FIRST, routers=[router])
    broker = memory.broker(ack_policy=AckPolicy.ACK_FIRST)
    with pytest.raises(SetupError, match="ACK_FIRST"):
        broker.subscriber("returns")


async def test_a_router_moves_to_the_broker_that_includes_it_last(memory: MemoryEnvironment) -> None:
    first, second, router = memory.broker(), memory.broker(), OutboxRouter("r.")
    subscriber = router.subscriber("orders")
    first.include_router(router)
    first.include_router(router)  # once is as good as twice
    assert first.subscribers == [subscriber]
    second.include_router(router)
    assert (first.subscribers, second.subscribers) == ([], [subscriber])
    assert subscriber.queues == ["r.orders"]


def test_only_routers_of_this_kind_are_included(memory: MemoryEnvironment) -> None:
    with pytest.raises(TypeError, match="OutboxRouter"):
        memory.broker().include_router("router")  # type: ignore[arg-type] # the point


async def test_a_router_alone_says_what_it_lacks() -> None:
    publisher = OutboxRouter().publisher("orders")
    with pytest.raises(Exception, match=r"include_router|broker"):
        await publisher.publish("a")


def options(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - {"self"}


def takes_any(function: Callable[..., Any]) -> bool:
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())


@pytest.mark.parametrize("name", ["subscriber", "publisher"])
def test_every_level_takes_the_options_of_the_broker(name: str) -> None:
    wanted = options(getattr(OutboxBroker, name))
    assert wanted <= options(getattr(OutboxRouter, name))
    assert wanted <= options(getattr(FastAPIRouter, name))
    assert takes_any(OutboxRoute if name == "subscriber" else OutboxPublisher)


def test_the_fastapi_router_has_the_defaults_of_the_broker() -> None:
    for name in ("subscriber", "publisher", "__init__"):
        theirs = inspect.signature(getattr(OutboxBroker, name)).parameters
        ours = inspect.signature(getattr(FastAPIRouter, name)).parameters
        shared = (theirs.keys() & ours.keys()) - {"dependencies", "tags"}  # which are FastAPI's
        assert {each: ours[each].default for each in shared} == {each: theirs[each].default for each in shared}


def test_the_fastapi_router_takes_the_options_of_the_broker() -> None:
    # FastAPI injects, so that FastDepends' settings have no meaning there.
    assert options(OutboxBroker.__init__) - options(FastAPIRouter.__init__) == {"apply_types", "provider"}


async def test_a_prefix_may_make_a_queue_too_long(memory: MemoryEnvironment) -> None:
    router = OutboxRouter("p" * 250)

    @router.subscriber("orders", retry_strategy=NoRetry())
    async def handle(body: str) -> None: ...

    broker = memory.broker(routers=[router])
    subscriber = broker.subscribers[0]
    with pytest.raises(ValueError, match="queue"):
        await subscriber.start()
