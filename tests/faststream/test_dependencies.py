"""What handlers may ask for."""

import logging
from typing import Annotated, Any

import pytest
from faststream import Context, Depends
from faststream.exceptions import SetupError

from faststream_outbox import OutboxBroker, OutboxRouter
from faststream_outbox import OutboxMessage as Message
from faststream_outbox.annotations import (
    ContextRepo,
    Logger,
    NoCast,
    OutboxClient,
    OutboxMessage,
    OutboxProducer,
)
from faststream_outbox.annotations import OutboxBroker as Broker
from faststream_outbox.client import AbstractOutboxClient
from faststream_outbox.client import OutboxClient as Client
from faststream_outbox.publisher.producer import OutboxProducer as Producer
from tests.faststream.environments import Inbox, World


async def test_annotations(world: World, inbox: Inbox) -> None:
    broker = world.broker(logger=logging.getLogger("tests.faststream"))

    @broker.subscriber("orders")
    async def handle(  # noqa: PLR0917 - whatever can be asked for
        body: NoCast[int],
        message: OutboxMessage,
        used: Broker,
        producer: OutboxProducer,
        client: OutboxClient,
        context: ContextRepo,
        logger: Logger,
    ) -> None:
        inbox.put((body, message, used, producer, client, context, logger))

    async with world.running(broker):
        await world.publish(broker.publish, "1", queue="orders", correlation_id="c")
        body, message, used, producer, client, context, logger = await inbox.next()
    assert (body, message.correlation_id) == ("1", "c")
    assert used is broker
    assert isinstance(producer, Producer)
    assert isinstance(client, AbstractOutboxClient)
    assert context.get("broker") is None  # a context of the one message, which is over
    assert hasattr(logger, "info")


async def test_dependencies_are_resolved_and_closed_for_each_message(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    async def resource(message: OutboxMessage) -> Any:
        inbox.put(f"open {message.headers['n']}")
        yield message.headers["n"]
        inbox.put("close")

    def doubled(number: Annotated[int, Depends(resource)]) -> int:
        return number * 2

    @broker.subscriber("orders")
    async def handle(body: str, number: Annotated[int, Depends(doubled)], one: int = Depends(resource)) -> None:
        inbox.put((body, number, one))

    async with world.running(broker):
        for number in (1, 2):
            await world.publish(broker.publish, "a", queue="orders", headers={"n": number})
            assert await inbox.take(3) == [f"open {number}", ("a", number * 2, number), "close"]


async def test_a_global_of_the_context(world: World, inbox: Inbox) -> None:
    broker = world.broker()
    broker.context.set_global("limit", 7)

    @broker.subscriber("orders")
    async def handle(
        limit: Annotated[int, Context()],
        seen: Annotated[list[str], Context("seen_orders", initial=list)],
        nothing: Annotated[Any, Context("nothing", default=None)],
    ) -> None:
        seen.append("order")
        inbox.put((limit, list(seen), nothing))

    async with world.running(broker):
        await world.publish(broker.publish, "a", queue="orders")
        assert await inbox.next() == (7, ["order"], None)
        await world.publish(broker.publish, "a", queue="orders")
        assert await inbox.next() == (7, ["order", "order"], None)


async def test_a_dependency_may_be_overridden(memory: World, inbox: Inbox) -> None:
    broker = memory.broker()

    def real() -> str:
        raise AssertionError

    @broker.subscriber("orders")
    async def handle(body: str, name: Annotated[str, Depends(real)]) -> None:
        inbox.put((body, name))

    with broker.provider.scope(real, lambda: "fake"):
        async with memory.running(broker):
            await memory.publish(broker.publish, "a", queue="orders")
            assert await inbox.next() == ("a", "fake")


@pytest.mark.parametrize("annotation", [Message, OutboxBroker, AbstractOutboxClient, Client, Producer])
async def test_a_class_in_place_of_an_annotation_is_refused(memory: World, annotation: Any) -> None:
    router = OutboxRouter()

    async def handle(body: int, asked: Any) -> None: ...

    handle.__annotations__["asked"] = annotation
    router.subscriber("orders")(handle)
    with pytest.raises(SetupError, match=r"faststream_outbox\.annotations\.Outbox"):
        async with memory.running(memory.broker(routers=[router])):
            pass


async def test_a_class_with_a_context_is_an_annotation(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("orders")
    async def handle(body: int, message: Message = Context()) -> None:  # noqa: B008 - as FastStream's users write it
        inbox.put((body, message.body))

    async with world.running(broker):
        await world.publish(broker.publish, 1, queue="orders")
        assert await inbox.next() == (1, b"1")
