"""Middlewares: where they stand, and what they may do."""

from typing import Any, cast

import pytest
from faststream import BaseMiddleware, ExceptionMiddleware
from faststream.exceptions import SkipMessage

from faststream_outbox import ConstantRetry, OutboxRouter
from faststream_outbox.annotations import OutboxMessage
from tests.faststream.environments import Inbox, World


def noting(name: str, notes: list[str]) -> Any:
    class Noting(BaseMiddleware):
        async def on_receive(self) -> None:
            notes.append(f"enter {name}")

        async def after_processed(self, *args: Any) -> bool | None:
            notes.append(f"exit {name}")
            return await super().after_processed(*args)

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            notes.append(f"consume {name}")
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            notes.append(f"publish {name}")
            return await call_next(cmd)

    return Noting


async def test_from_the_broker_inwards(memory: World) -> None:
    notes: list[str] = []
    broker = memory.broker(middlewares=[noting("broker", notes)])
    router = OutboxRouter(middlewares=[noting("router", notes)])
    inner = OutboxRouter(middlewares=[noting("inner", notes)])

    @inner.subscriber("orders", middlewares=[noting("subscriber", notes)])
    async def handle(_body: str) -> None:
        notes.append("handle")

    router.include_router(inner)
    broker.include_router(router, middlewares=[noting("include", notes)])
    async with memory.running(broker):
        await memory.publish(broker.publish, "a", queue="orders")
    names = ["broker", "include", "router", "inner", "subscriber"]
    assert notes == [
        "publish broker",
        *(f"enter {name}" for name in names),
        *(f"consume {name}" for name in names),
        "handle",
        *(f"exit {name}" for name in reversed(names)),
    ]


async def test_a_publisher_of_a_router_has_its_middlewares(world: World) -> None:
    notes: list[str] = []
    broker = world.broker(middlewares=[noting("broker", notes)])
    router = OutboxRouter(middlewares=[noting("router", notes)])
    publisher = router.publisher("orders")
    broker.include_router(router)

    async with world.running(broker):
        await world.publish(publisher.publish, "a")
    assert notes[:2] == ["publish broker", "publish router"]


async def test_what_a_handler_returns_passes_all_middlewares(world: World, inbox: Inbox) -> None:
    notes: list[str] = []
    broker = world.broker(middlewares=[noting("broker", notes)])

    @broker.subscriber("orders", middlewares=[noting("subscriber", notes)])
    @broker.publisher("done")
    async def handle(body: str) -> str:
        notes.clear()
        return body

    @broker.subscriber("done")
    async def collect(_body: str) -> None:
        inbox.put(list(notes))

    async with world.running(broker):
        await world.publish(broker.publish, "a", queue="orders")
        seen = await inbox.next()
    assert [note for note in seen if note.startswith("publish")] == ["publish broker", "publish subscriber"]


async def test_a_function_is_a_middleware_of_a_subscriber(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    async def shout(call_next: Any, message: Any) -> Any:
        inbox.put("before")
        result = await call_next(message)
        inbox.put("after")
        return result

    @broker.subscriber("orders", middlewares=[cast("Any", shout)])
    async def handle(body: str) -> None:
        inbox.put(body)

    async with world.running(broker):
        await world.publish(broker.publish, "a", queue="orders")
        assert await inbox.take(3) == ["before", "a", "after"]


async def test_middlewares_may_be_added_after_subscribers(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    class Outer(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            inbox.put("outer")
            return await call_next(msg)

    class Inner(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            inbox.put("inner")
            return await call_next(msg)

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        inbox.put(body)

    broker.add_middleware(Inner)
    broker.insert_middleware(Outer)
    async with world.running(broker):
        await world.publish(broker.publish, "a", queue="orders")
        assert await inbox.take(3) == ["outer", "inner", "a"]


async def test_a_message_may_be_changed_on_its_way(world: World, inbox: Inbox) -> None:
    class Doubling(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.body *= 2
            cmd.add_headers({"by": "middleware"})
            return await call_next(cmd)

    broker = world.broker(middlewares=[Doubling])

    @broker.subscriber("orders")
    async def handle(body: str) -> str:
        return body

    @broker.subscriber("answers")
    async def collect(body: str, message: OutboxMessage) -> None:
        inbox.put((body, message.headers["by"]))

    async with world.running(broker):
        await world.publish(broker.publish, "r", queue="orders", reply_to="answers")
        assert await inbox.next() == ("rrrr", "middleware")


async def test_a_batch_may_be_changed_on_its_way(world: World, inbox: Inbox) -> None:
    class Doubling(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.batch_bodies = [body * 2 for body in cmd.batch_bodies]
            return await call_next(cmd)

    broker = world.broker(middlewares=[Doubling])

    @broker.subscriber("orders")
    async def collect(body: str) -> None:
        inbox.put(body)

    async with world.running(broker):
        await world.publish(broker.publish_batch, "a", "b", queue="orders")
        assert sorted(await inbox.take(2)) == ["aa", "bb"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda bodies: bodies[::-1], [("c", "C"), ("b", "B"), ("a", "A")]),
        (lambda bodies: bodies[1:], [("b", "B"), ("c", "C")]),
        (lambda bodies: [body * 2 for body in bodies], [("aa", "A"), ("bb", "B"), ("cc", "C")]),
    ],
    ids=["sorted otherwise", "one dropped", "changed"],
)
async def test_keys_follow_the_bodies_of_a_batch(memory: World, change: Any, expected: list[tuple[str, str]]) -> None:
    class Changing(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.batch_bodies = change(cmd.batch_bodies)
            return await call_next(cmd)

    broker = memory.broker(middlewares=[Changing])
    async with memory.running(broker):
        await memory.publish(broker.publish_batch, "a", "b", "c", queue="orders", keys=["A", "B", "C"])
    assert [(row.payload.decode(), row.entity_key) for row in await memory.rows()] == expected


async def test_an_exception_middleware_answers_for_the_handler(world: World, inbox: Inbox) -> None:
    handling = ExceptionMiddleware()

    @handling.add_handler(ZeroDivisionError, publish=True)
    async def divided_by_zero(_error: ZeroDivisionError) -> str:
        return "a default"

    @handling.add_handler(KeyError)
    async def missing(_error: KeyError) -> None:
        inbox.put("handled")

    broker = world.broker(middlewares=[handling])

    @broker.subscriber("orders")
    @broker.publisher("done")
    async def handle(body: int) -> float:
        if body == 7:
            raise KeyError
        return 1 / body

    @broker.subscriber("done")
    async def collect(body: Any) -> None:
        inbox.put(body)

    async with world.running(broker):
        await world.publish(broker.publish, 0, queue="orders")
        assert await inbox.next() == "a default"
        await world.drained()  # handled is handled: nothing is retried
        await world.publish(broker.publish, 7, queue="orders")
        assert await inbox.next() == "handled"
        await world.drained()
    assert inbox.empty


async def test_an_error_passes_through_all_middlewares(looping: World, inbox: Inbox) -> None:
    class Seeing(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            try:
                return await call_next(msg)
            except ValueError as error:
                inbox.put(str(error))
                raise

        async def after_processed(self, exc_type: Any = None, *args: Any) -> bool | None:
            inbox.put(exc_type)
            return await super().after_processed(exc_type, *args)

    broker = looping.broker(middlewares=[Seeing])

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        raise ValueError(body)

    async with looping.running(broker):
        await looping.publish(broker.publish, "a", queue="orders")
        assert await inbox.take(2) == ["a", ValueError]
    [row] = await looping.rows()
    assert row.attempts_count == 1


@pytest.mark.parametrize("where", ["consume_scope", "on_receive", "handler"])
async def test_a_skipped_message_is_not_lost(world: World, inbox: Inbox, where: str) -> None:
    """FastStream gives no verdict on it, and what has no verdict is tried again."""

    class Skipping(BaseMiddleware):
        async def on_receive(self) -> None:
            inbox.put("seen")
            if where == "on_receive":
                raise SkipMessage

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            if where == "consume_scope":
                raise SkipMessage
            return await call_next(msg)

    broker = world.broker(middlewares=[Skipping])

    @broker.subscriber("orders", retry_strategy=ConstantRetry(delay_seconds=60, max_attempts=2))
    async def handle(body: str) -> None:
        if where == "handler":
            raise SkipMessage
        inbox.put(body)

    async with world.running(broker):
        await world.publish(broker.publish, "a", queue="orders")
        assert await inbox.next() == "seen"
    [row] = await world.rows()
    assert row.attempts_count == 1
    assert inbox.empty
