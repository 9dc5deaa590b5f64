"""The short way to a handler ends where FastStream's does, and shows the handler the same."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import uuid4

import pytest
from faststream import AckPolicy, Context, Depends, Header
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, StopConsume
from pydantic import BaseModel, Field
from sqlalchemy import MetaData

from faststream_outbox import OutboxBroker, OutboxResponse, make_outbox_table
from faststream_outbox._faststream import SubscriberUsecase
from faststream_outbox.annotations import ContextRepo, Logger, OutboxMessage
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.subscriber.fast_path import FastPath, has_fast_path
from faststream_outbox.subscriber.usecase import OutboxSubscriber
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on

# Of objects that are not the same in two runs.
_ADDRESS = re.compile(r"(0x|\.\.\.)[0-9a-f]+>")
POLICIES = (AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL)


class Order(BaseModel):
    id: int
    note: str = "none"


class Log:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, Any, Any]] = []

    def log(self, level: int, msg: Any, /, *, exc_info: Any = None, extra: Any = None) -> None:
        self.lines.append((level, str(msg), extra, type(exc_info)))


JSON = '{"content-type": "application/json"}'


def delivery(body: bytes = b'{"id": 1}', headers: str | None = JSON) -> OutboxDelivery:
    now = time.time()
    return OutboxDelivery(
        id=7,
        queue="orders",
        entity_key=None,
        payload=body,
        headers_json=headers,
        timer_id=None,
        created_epoch=1_767_225_600.0,  # the same each time: answers have it in their correlation id
        next_attempt_epoch=now,
        acquired_epoch=now,
        acquired_token=uuid4(),
        lease_expires_epoch=now,
        attempts_count=0,
        deliveries_count=1,
        first_attempt_epoch=None,
        last_attempt_epoch=None,
    )


Declare = Callable[[OutboxBroker, dict[str, Any], list[Any]], None]


def handler(function: Callable[[list[Any]], Callable[..., Any]], *, published_to: str | None = None) -> Declare:
    """Subscribe what `function` makes of the list that it writes what it saw to."""

    def declare(broker: OutboxBroker, options: dict[str, Any], seen: list[Any]) -> None:
        declared = function(seen)
        if published_to is not None:
            declared = broker.publisher(published_to)(declared)
        broker.subscriber("orders", **options)(declared)

    return declare


@dataclass
class End:
    """All that is left of a message's run."""

    raised: Any
    verdict: Any
    outputs: Any
    lines: Any
    seen: Any


async def opened(broker: OutboxBroker) -> tuple[OutboxSubscriber, FastPath]:
    """Start a broker's one subscriber as far as FastStream does, and prepare its short way."""
    subscriber = broker.subscribers[0]
    assert isinstance(subscriber, OutboxSubscriber)
    broker.config.logger._setup(broker.config.context)
    await SubscriberUsecase.start(subscriber)
    assert has_fast_path(subscriber.calls, subscriber.ack_policy)
    config = subscriber._outer_config
    shortcut = FastPath(subscriber, subscriber.calls[0], config, subscriber.ack_policy, no_reply=False)
    assert shortcut.is_open
    return subscriber, shortcut


async def run(
    declare: Declare, made: OutboxDelivery, options: dict[str, Any], *, short: bool, **broker_options: Any
) -> End:
    log, seen = Log(), list[Any]()
    broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()), logger=log, **broker_options)
    declare(broker, options, seen)
    subscriber, shortcut = await opened(broker)
    log.lines.clear()
    raised: BaseException | None = None
    try:
        await (shortcut.process(made) if short else subscriber.process_message(made))
    except BaseException as error:  # noqa: BLE001 - compared
        raised = error
    context = broker.config.context
    assert (context.get_local("message"), context.get_local("log_context")) == (None, None)
    outputs = [(new.queue, new.payload, new.headers_json) for new in made.outputs]
    told = [(level, _ADDRESS.sub("", line), extra, kind) for level, line, extra, kind in log.lines]
    return End((type(raised), _ADDRESS.sub("", str(raised))), made.verdict, outputs, told, seen)


async def assert_same(
    declare: Declare, make: Callable[[], OutboxDelivery] = delivery, *, policy: AckPolicy = AckPolicy.NACK_ON_ERROR
) -> End:
    options = {"ack_policy": policy}
    short = await run(declare, make(), options, short=True)
    assert short == await run(declare, make(), options, short=False)
    return short


def raising(error: BaseException) -> Declare:
    def make(_: list[Any]) -> Callable[..., Any]:
        async def handle(_order: Order) -> None:
            raise error

        return handle

    return handler(make)


def returning(value: Any, published_to: str | None = None) -> Declare:
    def make(seen: list[Any]) -> Callable[..., Any]:
        async def handle(order: Order) -> Any:
            seen.append(order)
            return value

        return handle

    return handler(make, published_to=published_to)


@pytest.mark.parametrize("policy", POLICIES)
async def test_what_returns(policy: AckPolicy) -> None:
    end = await assert_same(returning(None), policy=policy)
    assert end.seen == [Order(id=1)]
    assert [line[1] for line in end.lines] == ["Received", "Processed"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("no"), KeyError("no"), AckMessage(), NackMessage(), NackMessage(delay=5), RejectMessage()),
        *(StopConsume(), SystemExit(), asyncio.CancelledError()),
    ],
    ids=repr,
)
async def test_what_raises(error: BaseException, policy: AckPolicy) -> None:
    await assert_same(raising(error), policy=policy)


@pytest.mark.parametrize(
    ("value", "published_to"),
    [
        (5, None),
        (5, "next"),
        (None, "next"),
        (OutboxResponse({"a": 1}, queue="there"), None),
        (OutboxResponse({"a": 1}, queue="there", headers={"h": "1"}, correlation_id="c"), "next"),
        (OutboxResponse("nowhere"), None),
    ],
)
async def test_what_answers(value: Any, published_to: str | None) -> None:
    await assert_same(returning(value, published_to))


async def test_who_is_answered() -> None:
    headers = json.dumps({"content-type": "application/json", "reply_to": "replies", "correlation_id": "c"})
    end = await assert_same(returning({"b": 2}), lambda: delivery(headers=headers))
    assert [queue for queue, _, _ in end.outputs] == ["replies"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"id": "x"}', JSON),
        (b"{", JSON),
        (b"\xff", JSON),
        (b'{"id": 1}', "[]"),
        (b'{"id": 1}', "{"),
        (b'{"id": 1}', None),
        (b'{"id": 1}', '{"content-type": "text/plain"}'),
    ],
)
async def test_what_cannot_be_read(body: bytes, headers: str | None) -> None:
    await assert_same(returning(None), lambda: delivery(body, headers))


def _no_parameters(seen: list[Any]) -> Callable[..., Any]:
    async def handle() -> None:
        seen.append("called")

    return handle


def _unpacked(seen: list[Any]) -> Callable[..., Any]:
    async def handle(id: int, note: str = "none") -> None:  # noqa: A002 - as the body has it
        seen.append((id, note))

    return handle


def _aliased(seen: list[Any]) -> Callable[..., Any]:
    async def handle(number: Annotated[int, Field(alias="id")], note: str = "none") -> None:
        seen.append((number, note))

    return handle


def _looking_up(seen: list[Any]) -> Callable[..., Any]:
    async def handle(  # noqa: PLR0917 - all that can be asked for
        order: Order,
        message: OutboxMessage,
        logger: Logger,
        context: ContextRepo,
        queue: Annotated[str, Context("message.raw_message.queue")],
        about: Annotated[dict[str, str], Context("log_context")],
        content_type: Annotated[str, Header("content-type")],
        missing: Annotated[str, Context("nothing", default="there was none")],
        made: Annotated[str, Context("made", initial=lambda: "made")],
    ) -> None:
        names = type(context.get_local("handler_")).__name__, type(context.get_local("broker")).__name__
        seen.append(
            (order, message.message_id, type(logger).__name__, queue, about, content_type, missing, made, names)
        )

    return handle


def _looking_up_alone(seen: list[Any]) -> Callable[..., Any]:
    async def handle(message: OutboxMessage) -> None:
        seen.append(await message.decode())

    return handle


def _keyword_only(seen: list[Any]) -> Callable[..., Any]:
    async def handle(*, order: Order) -> None:
        seen.append(order)

    return handle


def _variadic(seen: list[Any]) -> Callable[..., Any]:
    async def handle(*_bodies: Any, **more: Any) -> None:
        seen.append(sorted(more))

    return handle


def _depending(seen: list[Any]) -> Callable[..., Any]:
    async def number(id: int) -> int:  # noqa: A002 - as the body has it
        return id + 1

    async def handle(id: int, more: Annotated[int, Depends(number)]) -> None:  # noqa: A002 - as the body has it
        seen.append((id, more))

    return handle


def _in_a_thread(seen: list[Any]) -> Callable[..., Any]:
    def handle(order: Order) -> None:
        seen.append(order)

    return handle


def _casting_its_answer(seen: list[Any]) -> Callable[..., Any]:
    async def handle(order: Order) -> int:
        seen.append(order)
        return "5"  # type: ignore[return-value]

    return handle


@pytest.mark.parametrize(
    "make",
    [
        *(_no_parameters, _unpacked, _aliased, _looking_up, _looking_up_alone, _keyword_only, _variadic, _depending),
        *(_in_a_thread, _casting_its_answer),
    ],
)
@pytest.mark.parametrize("apply_types", [True, False])
async def test_what_is_asked_for(make: Callable[[list[Any]], Callable[..., Any]], *, apply_types: bool) -> None:
    declare = handler(make, published_to="next")
    for body in (b'{"id": 1}', b"[1]", b"1", b'"text"'):
        ends = [await run(declare, delivery(body), {}, short=short, apply_types=apply_types) for short in (True, False)]
        assert ends[0] == ends[1], body


async def test_what_a_handler_leaves_in_the_context_is_no_concern_of_the_next() -> None:
    seen = list[Any]()
    broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()), logger=None)

    @broker.subscriber("orders")
    async def handle(order: Order, context: ContextRepo) -> None:
        seen.append((order.id, type(context.get_local("broker"))))
        context.set_local("broker", None)

    _subscriber, shortcut = await opened(broker)
    await shortcut.process(delivery())
    await shortcut.process(delivery())
    assert seen == [(1, OutboxBroker), (1, OutboxBroker)]


async def test_a_publisher_that_comes_later_publishes() -> None:
    broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()), logger=None)

    @broker.subscriber("orders")
    async def handle(order: Order) -> int:
        return order.id

    _subscriber, shortcut = await opened(broker)
    broker.publisher("late")(handle)
    made = delivery()
    await shortcut.process(made)
    assert [new.queue for new in made.outputs] == ["late"]


async def test_a_subscriber_that_is_started_again_looks_again(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    seen: asyncio.Queue[str] = asyncio.Queue()
    subscriber = broker.subscriber("orders")

    @subscriber
    async def rest(_body: str) -> None:
        seen.put_nowait("rest")

    await broker.start()
    await broker.stop()

    async def mine(message: Any) -> bool:
        return bool(message.body == b"mine")

    @subscriber(filter=mine)
    async def special(_body: str) -> None:
        seen.put_nowait("special")

    subscriber.calls.data.reverse()  # the one with a filter is asked first
    await broker.start()
    async with postgres.transaction() as session:
        await broker.publish("mine", queue="orders", session=session)
    async with asyncio.timeout(30):
        assert await seen.get() == "special"
    await broker.stop()
