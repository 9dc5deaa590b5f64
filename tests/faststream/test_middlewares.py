"""Middlewares: where they stand, and what they may do."""

from typing import Any, cast

import pytest
from faststream import BaseMiddleware, ExceptionMiddleware
from faststream.exceptions import SkipMessage
from sqlalchemy.orm import Session

from faststream_outbox import ConstantRetry, OutboxResponse, OutboxRouter
from faststream_outbox.annotations import OutboxMessage
from tests.faststream.environments import Environment, PostgresEnvironment, Received


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


async def test_from_the_broker_inwards(memory: Environment) -> None:
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


async def test_a_publisher_of_a_router_has_its_middlewares(environment: Environment) -> None:
    notes: list[str] = []
    broker = environment.broker(middlewares=[noting("broker", notes)])
    router = OutboxRouter(middlewares=[noting("router", notes)])
    publisher = router.publisher("orders")
    broker.include_router(router)

    async with environment.running(broker):
        await environment.publish(publisher.publish, "a")
    assert notes[:2] == ["publish broker", "publish router"]


async def test_what_a_handler_returns_passes_all_middlewares(environment: Environment, received: Received) -> None:
    notes: list[str] = []
    broker = environment.broker(middlewares=[noting("broker", notes)])

    @broker.subscriber("orders", middlewares=[noting("subscriber", notes)])
    @broker.publisher("done")
    async def handle(body: str) -> str:
        notes.clear()
        return body

    @broker.subscriber("done")
    async def collect(_body: str) -> None:
        received.put(list(notes))

    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="orders")
        seen = await received.next()
    assert [note for note in seen if note.startswith("publish")] == ["publish broker", "publish subscriber"]


async def test_a_function_is_a_middleware_of_a_subscriber(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    async def shout(call_next: Any, message: Any) -> Any:
        received.put("before")
        result = await call_next(message)
        received.put("after")
        return result

    @broker.subscriber("orders", middlewares=[cast("Any", shout)])
    async def handle(body: str) -> None:
        received.put(body)

    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="orders")
        assert await received.take(3) == ["before", "a", "after"]


async def test_middlewares_may_be_added_after_subscribers(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    class Outer(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            received.put("outer")
            return await call_next(msg)

    class Inner(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            received.put("inner")
            return await call_next(msg)

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        received.put(body)

    broker.add_middleware(Inner)
    broker.insert_middleware(Outer)
    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="orders")
        assert await received.take(3) == ["outer", "inner", "a"]


async def test_a_message_may_be_changed_on_its_way(environment: Environment, received: Received) -> None:
    class Doubling(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.body *= 2
            cmd.add_headers({"by": "middleware"})
            return await call_next(cmd)

    broker = environment.broker(middlewares=[Doubling])

    @broker.subscriber("orders")
    async def handle(body: str) -> str:
        return body

    @broker.subscriber("answers")
    async def collect(body: str, message: OutboxMessage) -> None:
        received.put((body, message.headers["by"]))

    async with environment.running(broker):
        await environment.publish(broker.publish, "r", queue="orders", reply_to="answers")
        assert await received.next() == ("rrrr", "middleware")


async def test_a_batch_may_be_changed_on_its_way(environment: Environment, received: Received) -> None:
    class Doubling(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.batch_bodies = [body * 2 for body in cmd.batch_bodies]
            return await call_next(cmd)

    broker = environment.broker(middlewares=[Doubling])

    @broker.subscriber("orders")
    async def collect(body: str) -> None:
        received.put(body)

    async with environment.running(broker):
        await environment.publish(broker.publish_batch, "a", "b", queue="orders")
        assert sorted(await received.take(2)) == ["aa", "bb"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda bodies: bodies[::-1], [("c", "C"), ("b", "B"), ("a", "A")]),
        (lambda bodies: bodies[1:], [("b", "B"), ("c", "C")]),
        (lambda bodies: [body * 2 for body in bodies], [("aa", "A"), ("bb", "B"), ("cc", "C")]),
    ],
    ids=["sorted otherwise", "one dropped", "changed"],
)
async def test_keys_follow_the_bodies_of_a_batch(
    memory: Environment, change: Any, expected: list[tuple[str, str]]
) -> None:
    class Changing(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.batch_bodies = change(cmd.batch_bodies)
            return await call_next(cmd)

    broker = memory.broker(middlewares=[Changing])
    async with memory.running(broker):
        await memory.publish(broker.publish_batch, "a", "b", "c", queue="orders", keys=["A", "B", "C"])
    assert [(row.payload.decode(), row.entity_key) for row in await memory.rows()] == expected


def changing_bodies(change: Any, *queues: str) -> Any:
    """Return a middleware that changes the bodies for some queues."""

    class Changing(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            if cmd.destination in queues:
                cmd.batch_bodies = change(cmd.batch_bodies)
            return await call_next(cmd)

    return Changing


@pytest.mark.parametrize("empty", [[], ()], ids=["a list", "a tuple"])
async def test_without_bodies_nothing_is_published(environment: Environment, received: Received, empty: Any) -> None:
    class Reading(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            received.put((cmd.body, cmd.batch_bodies))
            cmd.body = cmd.body  # as one that changes bodies does
            return await call_next(cmd)

    broker = environment.broker(middlewares=[changing_bodies(lambda _bodies: empty, "orders"), Reading])
    publisher = broker.publisher("orders")

    async with environment.running(broker):
        assert await environment.publish(broker.publish_batch, 1, 2, queue="orders", keys=["a", None]) == []
        assert await environment.publish(broker.publish, 1, queue="orders") is None
        assert await environment.publish(publisher.publish, 1) is None
        assert await received.take(3) == [(None, ())] * 3
        await environment.publish(broker.publish, None, queue="kept")  # a body None is a message
        assert [(row.queue, row.payload) for row in await environment.rows()] == [("kept", b"")]


async def test_without_bodies_nothing_is_answered(environment: Environment, received: Received) -> None:
    broker = environment.broker(middlewares=[changing_bodies(lambda _bodies: [], "next", "replies", "named")])

    @broker.publisher("next")
    @broker.subscriber("orders")
    async def handle(_body: str) -> OutboxResponse:
        return OutboxResponse("an answer", queue="named")

    @broker.subscriber(["next", "replies", "named"])
    async def collect(message: OutboxMessage) -> None:
        received.put(message.raw_message.queue)

    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="orders", reply_to="replies")
        await environment.drained()
    assert received.empty


async def test_a_middleware_may_add_bodies(environment: Environment, received: Received) -> None:
    grow = changing_bodies(lambda bodies: [*bodies, "more"], "orders", "answers")
    broker = environment.broker(middlewares=[grow])

    @broker.publisher("answers")
    @broker.subscriber("asked")
    async def handle(body: str) -> str:
        return body

    @broker.subscriber(["orders", "answers"])
    async def collect(body: str) -> None:
        received.put(body)

    async with environment.running(broker):
        ids = await environment.publish(broker.publish_batch, "a", "b", queue="orders")
        assert len(set(ids)) == 3
        assert sorted(await received.take(3)) == ["a", "b", "more"]
        assert isinstance(await environment.publish(broker.publish, "c", queue="orders"), int)
        assert sorted(await received.take(2)) == ["c", "more"]
        await environment.publish(broker.publish, "d", queue="asked")
        assert sorted(await received.take(2)) == ["d", "more"]
        with pytest.raises(ValueError, match="takes no timer_id"):
            await environment.publish(broker.publish, "e", queue="orders", timer_id="t")
    assert received.empty


async def test_a_middleware_may_add_and_remove_bodies_without_an_event_loop(real: PostgresEnvironment) -> None:
    broker = real.broker(
        middlewares=[changing_bodies(lambda _bodies: [], "none"), changing_bodies(lambda bodies: [*bodies, 2], "more")]
    )

    def publish(session: Session) -> list[int | None]:
        return [broker.publish_sync(1, queue, session=session) for queue in ("none", "more")]

    async with real.backend.transaction() as session:
        nothing, first = await session.run_sync(publish)
    assert nothing is None
    rows = await real.rows()
    assert [(row.queue, row.payload) for row in rows] == [("more", b"1"), ("more", b"2")]
    assert rows[0].id == first


async def test_an_exception_middleware_answers_for_the_handler(environment: Environment, received: Received) -> None:
    handling = ExceptionMiddleware()

    @handling.add_handler(ZeroDivisionError, publish=True)
    async def divided_by_zero(_error: ZeroDivisionError) -> str:
        return "a default"

    @handling.add_handler(KeyError)
    async def missing(_error: KeyError) -> None:
        received.put("handled")

    broker = environment.broker(middlewares=[handling])

    @broker.subscriber("orders")
    @broker.publisher("done")
    async def handle(body: int) -> float:
        if body == 7:
            raise KeyError
        return 1 / body

    @broker.subscriber("done")
    async def collect(body: Any) -> None:
        received.put(body)

    async with environment.running(broker):
        await environment.publish(broker.publish, 0, queue="orders")
        assert await received.next() == "a default"
        await environment.drained()  # handled is handled: nothing is retried
        await environment.publish(broker.publish, 7, queue="orders")
        assert await received.next() == "handled"
        await environment.drained()
    assert received.empty


async def test_an_error_passes_through_all_middlewares(looping: Environment, received: Received) -> None:
    class Seeing(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            try:
                return await call_next(msg)
            except ValueError as error:
                received.put(str(error))
                raise

        async def after_processed(self, exc_type: Any = None, *args: Any) -> bool | None:
            received.put(exc_type)
            return await super().after_processed(exc_type, *args)

    broker = looping.broker(middlewares=[Seeing])

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        raise ValueError(body)

    async with looping.running(broker):
        await looping.publish(broker.publish, "a", queue="orders")
        assert await received.take(2) == ["a", ValueError]
    [row] = await looping.rows()
    assert row.attempts_count == 1


@pytest.mark.parametrize("where", ["consume_scope", "on_receive", "handler"])
async def test_a_skipped_message_is_not_lost(environment: Environment, received: Received, where: str) -> None:
    """FastStream gives no verdict on it, and what has no verdict is tried again."""

    class Skipping(BaseMiddleware):
        async def on_receive(self) -> None:
            received.put("seen")
            if where == "on_receive":
                raise SkipMessage

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            if where == "consume_scope":
                raise SkipMessage
            return await call_next(msg)

    broker = environment.broker(middlewares=[Skipping])

    @broker.subscriber("orders", retry_strategy=ConstantRetry(delay_seconds=60, max_attempts=2))
    async def handle(body: str) -> None:
        if where == "handler":
            raise SkipMessage
        received.put(body)

    async with environment.running(broker):
        await environment.publish(broker.publish, "a", queue="orders")
        assert await received.next() == "seen"
    [row] = await environment.rows()
    assert row.attempts_count == 1
    assert received.empty
