"""Under which name a handler's messages are recorded."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker
from faststream.nats import JStream, NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.redis import ListSub, RedisBroker, StreamSub
from sqlalchemy import MetaData

from faststream_outbox import OutboxBroker, OutboxRouter, make_inbox_table, make_outbox_table
from faststream_outbox.annotations import InboxSession
from faststream_outbox.fastapi import OutboxRouter as FastAPIRouter
from faststream_outbox.inbox.consumer import derive_name, derived_consumer
from tests.broker.brokers import started
from tests.inbox.inbox_app import InboxApp
from tests.waiting import until_empty


async def handle(body: str) -> None: ...


class Bank:
    async def book(self, body: str) -> None: ...


def outbox() -> OutboxBroker:
    return OutboxBroker(outbox_table=make_outbox_table(MetaData()))


# Stored in people's tables: neither a change here nor a new FastStream may alter one.
NAMES: dict[str, Any] = {
    "q": lambda: outbox().subscriber("q"),
    "q,r": lambda: outbox().subscriber(["q", "r"]),
    "orders": lambda: KafkaBroker().subscriber("orders"),
    "orders,billing": lambda: KafkaBroker().subscriber("orders", group_id="billing"),
    "orders,refunds,billing": lambda: ConfluentBroker().subscriber("orders", "refunds", group_id="billing"),
    "invoices": lambda: RabbitBroker().subscriber(RabbitQueue("invoices", durable=True), "exchange"),
    "subject": lambda: NatsBroker().subscriber("subject", stream=JStream("stream"), durable="billing", pull_sub=True),
    "subject,workers": lambda: NatsBroker().subscriber("subject", queue="workers"),
    "stream": lambda: RedisBroker().subscriber(stream=StreamSub("stream", group="billing", consumer="one")),
    "channel": lambda: RedisBroker().subscriber("channel"),
    "list": lambda: RedisBroker().subscriber(list=ListSub("list")),
}


@pytest.mark.parametrize("source", NAMES)
def test_a_name_is_that_of_the_handler_and_of_its_source(source: str) -> None:
    subscriber = NAMES[source]()
    subscriber(handle)
    assert derive_name(subscriber) == f"tests.inbox.test_consumer.handle@{source}"


def test_handlers_of_other_kinds() -> None:
    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        async def call(body: str) -> None: ...

        return call

    for handler, name in ((Bank().book, "Bank.book"), (decorated(handle), "handle")):
        subscriber = outbox().subscriber("q")
        subscriber(handler)
        assert derive_name(subscriber) == f"tests.inbox.test_consumer.{name}@q"


def test_a_router_s_prefix_is_part_of_the_place() -> None:
    broker, router = outbox(), OutboxRouter(prefix="shop_")
    subscriber = router.subscriber("q")
    subscriber(handle)
    broker.include_router(router)
    assert derive_name(subscriber) == "tests.inbox.test_consumer.handle@shop_q"


def test_fastapi_hides_no_name() -> None:
    subscriber = FastAPIRouter(outbox_table=make_outbox_table(MetaData())).subscriber("q")
    subscriber(handle)
    assert derive_name(subscriber) == "tests.inbox.test_consumer.handle@q"


@pytest.mark.parametrize("command", [["service.py"], ["-m", "service"], ["-c", "import service"]])
def test_a_module_has_its_name_however_it_was_started(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(
        "from faststream.redis import RedisBroker\n"
        "from faststream_outbox.inbox.consumer import derive_name\n"
        "subscriber = RedisBroker().subscriber('q')\n"
        "@subscriber\n"
        "async def handle(body: str) -> None: ...\n"
        "print(derive_name(subscriber))\n"
    )
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "service.handle@q\n"


def test_what_has_no_name_is_refused() -> None:
    nameless, several = outbox().subscriber("q"), outbox().subscriber("q")
    nameless(functools.partial(handle))
    several(handle, filter=lambda message: not message.body)
    several(Bank().book)
    for subscriber, words in ((nameless, "has a partial, which has no name"), (several, "this subscriber has several")):
        with pytest.raises(RuntimeError, match=words):
            derive_name(subscriber)


def test_a_name_that_is_too_long_is_refused() -> None:
    subscriber = outbox().subscriber("q" * 250)
    subscriber(handle)
    with pytest.raises(ValueError, match="consumer has 283 characters and the column holds 255"):
        derived_consumer(make_inbox_table(MetaData()), subscriber)


async def test_one_inbox_for_a_whole_broker(app: InboxApp) -> None:
    """Each handler gets the message, and gets it once."""
    inbox = app.inbox(None)
    broker = app.broker(middlewares=[inbox])
    assert inbox.consumer is None

    async def bill(body: str, session: InboxSession) -> None:
        await app.write(session, f"bill {body}")

    async def audit(body: str, session: InboxSession) -> None:
        await app.write(session, f"audit {body}")

    broker.subscriber("billing")(bill)
    broker.subscriber("audit")(audit)
    for queue in ("billing", "audit") * 2:
        await app.send(broker, "a", message_id="1", queue=queue)
    async with started(broker):
        await until_empty(app.postgres)
    assert sorted(await app.written()) == ["audit a", "bill a"]
    names = [f"{each.__module__}.{each.__qualname__}@{queue}" for each, queue in ((audit, "audit"), (bill, "billing"))]
    assert await app.seen() == [(name, "1") for name in names]
    await app.age(days=8)
    assert await inbox.clean() == 2, "the handlers that it has served"


async def test_after_a_restart_the_name_is_the_same(app: InboxApp) -> None:
    for _ in range(2):
        broker = app.broker(middlewares=[app.inbox(None)])

        @broker.subscriber("q")
        async def book(body: str, session: InboxSession) -> None:
            await app.write(session, body)

        await app.send(broker, "a", message_id="1")
        async with started(broker):
            await until_empty(app.postgres)
    assert await app.written() == ["a"]


async def test_two_inboxes_do_not_come_to_the_same_name(app: InboxApp) -> None:
    """Two functions of one name in one module, on two queues of one name."""
    brokers = [app.broker(middlewares=[app.inbox(None)]) for _ in range(2)]
    for broker in brokers:

        @broker.subscriber("q", ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def book(body: str, session: InboxSession) -> None:
            await app.write(session, body)

    async with started(brokers[0]):
        await app.send(brokers[0], "a", message_id="1")
        await until_empty(app.postgres)
        # Its loops stand still from here on, and it still counts as running.
        for subscriber in brokers[0].subscribers:
            await subscriber.stop()
            subscriber.running = True
        async with started(brokers[1]):
            await app.send(brokers[1], "a", message_id="2")
            await until_empty(app.postgres)
    [letter] = await app.postgres.dead_letters()
    assert "serves two subscribers" in str(letter.last_exception)
    assert await app.written() == ["a"]
