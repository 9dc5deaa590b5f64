"""Handlers under FastAPI: what is injected, what is refused, what is published."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, cast

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from faststream import Context as FastStreamContext
from faststream import Depends as FastStreamDepends
from faststream import Response
from faststream.exceptions import SetupError
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox import OutboxMessage as RootMessage
from faststream_outbox import OutboxResponse, TestOutboxBroker, annotations
from faststream_outbox import OutboxRouter as BrokerRouter
from faststream_outbox import OutboxSession as RootSession
from faststream_outbox.fastapi import (
    Context,
    ContextRepo,
    Logger,
    OutboxBroker,
    OutboxClient,
    OutboxMessage,
    OutboxProducer,
)
from tests.fastapi.applications import router_in, serving
from tests.faststream.environments import Environment, MemoryEnvironment, Received


class Order(BaseModel):
    number: int
    note: str | None = None


async def test_fastapi_injects(environment: Environment, received: Received) -> None:
    router = router_in(environment)

    async def doubled(number: int) -> AsyncIterator[int]:
        yield number * 2
        received.put("closed")

    @router.subscriber("orders")
    async def handle(  # noqa: PLR0917 - whatever can be asked for
        number: int,
        twice: Annotated[int, Depends(doubled)],
        source: Annotated[str, Header()],
        message: OutboxMessage,
        broker: OutboxBroker,
        client: OutboxClient,
        producer: OutboxProducer,
        context: ContextRepo,
        logger: Logger,
        correlation_id: Annotated[str, Context("message.correlation_id")],
    ) -> None:
        assert (context.get("message"), logger is not None) == (message, True)
        assert (broker.client, broker._producer) == (client, producer)
        received.put((number, twice, source, message.message_id, correlation_id, broker))

    async with environment.running(router.broker):
        row_id = await environment.publish(
            router.broker.publish, {"number": "3"}, queue="orders", headers={"source": "shop"}, correlation_id="c"
        )
        expected = (3, 6, "shop", str(row_id), "c", router.broker)
        assert await received.take(2) == [expected, "closed"]


async def test_bodies_of_all_kinds(environment: Environment, received: Received) -> None:
    router = router_in(environment)

    @router.subscriber("plain")
    async def handle_plain(body: str) -> None:
        received.put(body)

    @router.subscriber("models")
    async def handle_model(order: Order) -> None:
        received.put(order)

    @router.subscriber("nothing")
    async def handle_nothing() -> None:
        received.put("nothing")

    @router.subscriber("requests")
    async def handle_request(request: Request) -> None:
        received.put("app" in request.scope)

    async with environment.running(router.broker):
        for queue, body, expected in (
            ("plain", "text", "text"),
            ("models", {"number": 1}, Order(number=1)),
            ("nothing", "whatever", "nothing"),
            ("requests", None, True),
        ):
            await environment.publish(router.broker.publish, body, queue=queue)
            assert await received.next() == expected


async def test_what_a_handler_returns_is_published_through_its_model(
    environment: Environment, received: Received
) -> None:
    router = router_in(environment)

    @router.publisher("after")
    @router.subscriber("orders", response_model=Order, response_model_exclude_none=True)
    @router.publisher("before")
    async def handle(number: int) -> Any:
        return {"number": number, "note": None, "secret": "x"}

    @router.subscriber("answers")
    async def answer() -> Response:
        return Response("hi", headers={"h": "1"})

    @router.subscriber(["before", "after", "replies"])
    async def collect(message: OutboxMessage) -> None:
        received.put((message.raw_message.queue, await message.decode(), message.headers.get("h")))

    async with environment.running(router.broker):
        await environment.publish(router.broker.publish, 1, queue="orders")
        assert sorted(await received.take(2)) == [("after", {"number": 1}, None), ("before", {"number": 1}, None)]
        await environment.publish(router.broker.publish, 1, queue="answers", reply_to="replies")
        assert await received.next() == ("replies", "hi", "1")


async def test_background_tasks_run_after_the_handler(environment: Environment, received: Received) -> None:
    router = router_in(environment)

    @router.subscriber("orders")
    async def handle(number: int, tasks: BackgroundTasks) -> None:
        tasks.add_task(received.put, "task")
        received.put(number)

    async with environment.running(router.broker):
        await environment.publish(router.broker.publish, 1, queue="orders")
        assert await received.take(2) == [1, "task"]
        await environment.drained()


async def test_a_background_task_that_fails_has_the_message_tried_again(
    looping: Environment, received: Received
) -> None:
    router = router_in(looping)

    def fail() -> None:
        received.put("failed")
        raise ZeroDivisionError

    @router.subscriber("orders")
    async def handle(number: int, tasks: BackgroundTasks) -> None:
        tasks.add_task(fail)
        received.put(number)

    async with looping.running(router.broker):
        await looping.publish(router.broker.publish, 1, queue="orders")
        assert await received.take(2) == [1, "failed"]
    assert [row.attempts_count for row in await looping.rows()] == [1]


async def test_an_invalid_body_surfaces_in_tests(memory: MemoryEnvironment) -> None:
    router = router_in(memory)

    @router.subscriber("orders")
    async def handle(number: int) -> None: ...

    async with TestOutboxBroker(router.broker) as broker:
        with pytest.raises(RequestValidationError):
            await broker.publish("not a number", queue="orders")


async def test_dependencies_of_the_router_and_their_overrides(environment: Environment, received: Received) -> None:
    def real() -> str:
        raise AssertionError

    router = router_in(environment, dependencies=[Depends(lambda: received.put("router"))])
    own: Any = [Depends(lambda: received.put("plain"))]
    plain = BrokerRouter("plain.", dependencies=own)

    @router.subscriber("orders", dependencies=[Depends(lambda: received.put("subscriber"))])
    async def handle(name: Annotated[str, Depends(real)]) -> None:
        received.put(name)

    @plain.subscriber("orders", dependencies=cast("Any", [Depends(lambda: received.put("of plain"))]))
    async def handle_plain(name: Annotated[str, Depends(real)], message: OutboxMessage) -> None:
        received.put((name, message.raw_message.queue))

    router.include_router(plain, prefix="included.", dependencies=[Depends(lambda: received.put("include"))])
    app = FastAPI()
    app.include_router(router)
    app.dependency_overrides[real] = lambda: "fake"
    async with environment.running(router.broker), serving(app):
        await environment.publish(router.broker.publish, None, queue="orders")
        assert await received.take(3) == ["router", "subscriber", "fake"]
        await environment.publish(router.broker.publish, None, queue="included.plain.orders")
        assert await received.take(4) == ["router", "include", "plain", "of plain"]
        assert await received.next() == ("fake", "included.plain.orders")


async def test_dependencies_of_faststream_are_refused(memory: MemoryEnvironment) -> None:
    plain = BrokerRouter(dependencies=[FastStreamDepends(lambda: None)])

    @plain.subscriber("orders")
    async def handle(number: int) -> None: ...

    with pytest.raises(SetupError, match=r"orders .* fastapi\.Depends"):
        router_in(memory).include_router(plain)


async def test_an_outbox_response_of_a_handler(environment: Environment, received: Received) -> None:
    router = router_in(environment)

    @router.subscriber("orders")
    async def handle(number: int) -> OutboxResponse:
        return OutboxResponse({"number": number}, queue="chosen")

    @router.subscriber("chosen")
    async def collect(number: int) -> None:
        received.put(number)

    async with environment.running(router.broker):
        await environment.publish(router.broker.publish, 1, queue="orders")
        assert await received.next() == 1


async def test_routers_of_either_kind_are_included(memory: MemoryEnvironment) -> None:
    paths = APIRouter()

    @paths.get("/hello")
    async def hello() -> str:
        return "hello"

    router = router_in(memory, prefix="/api", routers=[BrokerRouter("early.", handlers=())])
    router.include_router(paths, prefix="/v1")
    app = FastAPI()
    app.include_router(router)
    async with TestOutboxBroker(router.broker), serving(app) as client:
        assert (await client.get("/api/v1/hello")).json() == "hello"
    with pytest.raises(TypeError, match="include_router"):
        router.include_router(router_in(memory))


@pytest.mark.parametrize(
    "annotation", [Annotated[Any, FastStreamDepends(lambda: 1)], Annotated[Any, FastStreamContext()]]
)
async def test_what_fastapi_would_not_resolve_is_refused(memory: MemoryEnvironment, annotation: Any) -> None:
    router = router_in(memory)

    async def handle(asked: Any) -> None: ...

    handle.__annotations__["asked"] = annotation
    router.subscriber("orders")(handle)
    with pytest.raises(SetupError, match="FastAPI"):
        async with TestOutboxBroker(router.broker):
            pass


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (annotations.OutboxSession, "OutboxSession"),
        (RootSession, "OutboxSession"),
        (AsyncSession, "OutboxSession"),
        (annotations.OutboxMessage, "OutboxMessage"),
        (RootMessage, "OutboxMessage"),
        (annotations.Logger, "Logger"),
    ],
    ids=["session", "session of the root", "plain session", "message", "plain message", "logger"],
)
@pytest.mark.parametrize("of", ["the handler", "a dependency", "the router", "the subscriber", "the inclusion"])
async def test_an_annotation_for_faststream_names_the_one_for_fastapi(
    memory: MemoryEnvironment, annotation: Any, name: str, of: str
) -> None:
    async def asks(asked: Any) -> None: ...

    asks.__annotations__["asked"] = annotation
    router = router_in(memory, dependencies=[Depends(asks)] if of == "the router" else [])

    async def handle(_body: int) -> None: ...

    async def depends(_body: int, _asked: Annotated[None, Depends(asks)]) -> None: ...

    if of == "the inclusion":
        plain = BrokerRouter()
        plain.subscriber("orders")(handle)
        router.include_router(plain, dependencies=[Depends(asks)])
    else:
        handlers: dict[str, Callable[..., Any]] = {"the handler": asks, "a dependency": depends}
        given = [Depends(asks)] if of == "the subscriber" else []
        router.subscriber("orders", dependencies=given)(handlers.get(of, handle))
    with pytest.raises(SetupError, match=rf"'asked' of asks\(\).*from faststream_outbox\.fastapi import {name}$"):
        async with TestOutboxBroker(router.broker):
            pass


async def test_a_session_of_the_applications_own_is_not_refused(memory: MemoryEnvironment, received: Received) -> None:
    router = router_in(memory)

    async def get_session() -> str:
        return "mine"

    @router.subscriber("orders")
    async def handle(body: int, session: AsyncSession = Depends(get_session)) -> None:
        received.put((body, session))

    async with TestOutboxBroker(router.broker) as broker:
        await broker.publish(1, queue="orders")
    assert await received.next() == (1, "mine")
