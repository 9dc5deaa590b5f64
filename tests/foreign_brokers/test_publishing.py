"""What a handler returns goes to another broker, with all that tells who it is; only then its row is deleted."""

from collections import defaultdict
from typing import Any

import pytest
from faststream import BaseMiddleware
from faststream.confluent import KafkaResponse as ConfluentResponse
from faststream.kafka import KafkaResponse
from faststream.nats import JStream
from faststream.redis import ListSub
from faststream.response import Response
from sqlalchemy import MetaData

from faststream_outbox import ConstantRetry, Inbox, NoRetry, make_inbox_table
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.relay.outgoing import make_outgoing
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.broker.test_ordering import publish_keyed
from tests.foreign_brokers.endpoints import KEEPING, Decorator, Endpoint
from tests.waiting import until, until_empty

SOON = ConstantRetry(delay_seconds=0.05)


def outbox_headers(message: Any) -> dict[str, str]:
    return {name: value for name, value in message.headers.items() if name.startswith("outbox_")}


def fail_behind(publisher: Any, *, times: int) -> None:
    """Let a publisher fail when its message has been sent, as it does when a confirmation is lost."""
    send, left = publisher._publish, iter(range(times))

    async def send_and_fail(*args: Any, **options: Any) -> None:
        await send(*args, **options)
        if next(left, None) is not None:
            raise ConnectionError("it has been sent, and will be again")

    publisher._publish = send_and_fail


async def test_an_answer_is_published_and_its_row_deleted(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker, there = broker_on(postgres, source="shop"), endpoint.broker()
    seen: list[OutboxMessage] = []

    @endpoint.publisher(there)
    @broker.subscriber("q")
    async def handle(body: dict[str, int], message: OutboxMessage) -> dict[str, int]:
        seen.append(message)
        return {"doubled": 2 * body["number"]}

    async with postgres.transaction() as session:
        await broker.publish({"number": 21}, queue="q", session=session, key="k", correlation_id="c1")
    async with endpoint.listening() as messages, started(broker):
        message = await messages.get()
        await until_empty(postgres)
    row = seen[0].raw_message
    outbox_id = f"shop/{row.id}-{row.created_epoch:.6f}"
    assert await message.decode() == {"doubled": 42}
    assert message.correlation_id == "c1"
    assert outbox_headers(message) == {
        "outbox_id": outbox_id,
        "outbox_source": "shop",
        "outbox_key": "k",
        "outbox_sequence": str(row.id),
    }
    # FastStream makes a Kafka message's id of its offset.
    assert outbox_id in (message.message_id, message.headers.get("message_id"))
    assert endpoint.key(message) in (b"k", None if "afka" not in type(there).__name__ else b"k")


@pytest.mark.parametrize(
    ("given", "batch"),
    [(None, False), (None, True), ("1", False)],
    ids=["none given", "none given, in a batch", "given, like the row's id"],
)
async def test_the_correlation_id_is_the_one_that_a_relay_sends(
    postgres: PostgresBackend, endpoint: Endpoint, given: str | None, *, batch: bool
) -> None:
    broker, there = broker_on(postgres, source="shop"), endpoint.broker()
    seen: list[OutboxMessage] = []

    @endpoint.publisher(there)
    @broker.subscriber("q", batch=batch)
    async def handle(message: OutboxMessage) -> str:
        seen.append(message)
        return "answer"

    async with postgres.transaction() as session:
        row_id = await broker.publish("a", queue="q", session=session, correlation_id=given)
    async with endpoint.listening() as messages, started(broker):
        message = await messages.get()
        await until_empty(postgres)
    row = seen[0].deliveries[0]
    assert row_id == 1
    assert seen[0].correlation_id == (given or str(row_id))
    assert message.correlation_id == make_outgoing(row, "x", source="shop", cloudevents=False).correlation_id
    assert message.correlation_id == (given or f"shop/1-{row.created_epoch:.6f}")


async def test_headers_go_along_if_they_are_asked_to(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker, there = broker_on(postgres), endpoint.broker()

    @endpoint.publisher(there)
    @broker.subscriber("q", propagate_inbound_headers=True)
    async def handle(body: str) -> Response:
        return Response(body, headers={"by": "the handler"})

    inbound = {"by": "the publisher", "tenant": "acme", "retries": 5, "nothing": None, "outbox_id": "somebody else's"}
    async with postgres.transaction() as session:
        await broker.publish("x", queue="q", session=session, headers=inbound)
    async with endpoint.listening() as messages, started(broker):
        message = await messages.get()
    assert (message.headers["by"], message.headers["tenant"]) == ("the handler", "acme")
    assert str(message.headers["retries"]) == "5"
    assert message.headers["outbox_id"].startswith("outbox/")


@pytest.mark.parametrize("endpoint", KEEPING, indirect=True)
async def test_the_order_of_a_key_is_kept(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker, there = broker_on(postgres), endpoint.broker()

    @endpoint.publisher(there)
    @broker.subscriber("q", max_workers=8)
    async def handle(body: dict[str, Any]) -> dict[str, Any]:
        return body

    await publish_keyed(broker, postgres, *((f"k{n % 5}", n) for n in range(60)))
    async with started(broker):
        await until_empty(postgres)
    seen = defaultdict[str, list[int]](list)
    for message in await endpoint.received(60):
        body = await message.decode()
        seen[body["key"]].append(body["number"])
    assert seen == {f"k{k}": [n for n in range(60) if n % 5 == k] for k in range(5)}


@pytest.mark.parametrize("rows", [1, 3])  # there is no telling who will be with one that is alone the next time
@pytest.mark.parametrize("endpoint", ["kafka", "redis stream"], indirect=True)
async def test_a_batch_of_a_key_is_one_message_of_that_key_without_an_id(
    postgres: PostgresBackend, endpoint: Endpoint, rows: int
) -> None:
    broker, there = broker_on(postgres), endpoint.broker()

    @endpoint.publisher(there)
    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[dict[str, Any]]) -> int:
        return sum(each["number"] for each in bodies)

    await publish_keyed(broker, postgres, *(("k", number) for number in range(1, rows + 1)))
    async with started(broker):
        await until_empty(postgres)
    [message] = await endpoint.received(1)
    assert await message.decode() == sum(range(1, rows + 1))
    assert outbox_headers(message) == {}
    assert endpoint.key(message) in (b"k", None if "afka" not in type(there).__name__ else b"k")


@pytest.mark.parametrize(
    ("endpoint", "response"), [("kafka", KafkaResponse), ("confluent", ConfluentResponse)], indirect=["endpoint"]
)
async def test_a_key_of_the_answer_wins_and_an_empty_answer_is_no_tombstone(
    postgres: PostgresBackend, endpoint: Endpoint, response: Any
) -> None:
    broker, there = broker_on(postgres), endpoint.broker()

    @endpoint.publisher(there)
    @broker.subscriber("q")
    async def handle(body: dict[str, Any]) -> Any:
        return response(body["number"], key=b"mine") if body["number"] else None

    await publish_keyed(broker, postgres, ("k", 1), ("k", 0))
    async with started(broker):
        await until_empty(postgres)
    keys = {await message.decode(): endpoint.key(message) for message in await endpoint.received(2)}
    assert keys == {1: b"mine", b"": None}


@pytest.mark.parametrize("endpoint", ["kafka"], indirect=True)
async def test_a_broker_that_makes_bytes_of_keys_is_given_text(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker, there = broker_on(postgres), endpoint.broker(key_serializer=str.encode)

    @endpoint.publisher(there)
    @broker.subscriber("q")
    async def handle(body: dict[str, Any]) -> dict[str, Any]:
        return body

    await publish_keyed(broker, postgres, ("k", 1))
    async with started(broker):
        await until_empty(postgres)
    [message] = await endpoint.received(1)
    assert endpoint.key(message) == b"k"


@pytest.mark.parametrize("endpoint", ["kafka", "confluent"], indirect=True)
async def test_messages_that_answer_one_row_together_have_no_id_that_they_would_share(
    postgres: PostgresBackend, endpoint: Endpoint
) -> None:
    broker, there = broker_on(postgres), endpoint.broker()

    batches: Decorator = there.publisher(endpoint.name, batch=True)

    @batches
    @broker.subscriber("q")
    async def handle(body: dict[str, Any]) -> list[int]:
        return [body["number"], body["number"] + 1]

    await publish_keyed(broker, postgres, ("k", 1))
    async with started(broker):
        await until_empty(postgres)
    messages = await endpoint.received(2)
    assert [await message.decode() for message in messages] == [1, 2]
    assert [outbox_headers(message) for message in messages] == [{}, {}]


@pytest.mark.parametrize("endpoint", ["kafka", "redis list"], indirect=True)
async def test_a_batch_that_a_middleware_emptied_is_no_message(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    class DropZeros(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.batch_bodies = [body for body in cmd.batch_bodies if body]
            return await call_next(cmd)

    broker, there = broker_on(postgres), endpoint.broker()
    where = {"list": ListSub(endpoint.name, batch=True)} if "redis" in type(there).__module__ else {}
    batches: Decorator = there.publisher(**where) if where else there.publisher(endpoint.name, batch=True)

    @batches
    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(body: dict[str, Any]) -> list[int]:
        return [body["number"]]

    await publish_keyed(broker, postgres, ("k", 0), ("k", 7))
    broker.add_middleware(DropZeros)
    async with started(broker):
        await until_empty(postgres)
    [message] = await endpoint.received(1)
    assert await message.decode() == 7
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("endpoint", ["kafka", "confluent", "rabbit", "redis stream"], indirect=True)
async def test_an_inbox_on_the_other_side_knows_what_it_has_had(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker, there = broker_on(postgres), endpoint.broker()
    publisher: Any = endpoint.publisher(there)
    fail_behind(publisher, times=2)
    inbox_table = make_inbox_table(MetaData())
    async with postgres.engine.begin() as connection:
        await connection.run_sync(inbox_table.metadata.create_all)

    @broker.subscriber("q", retry_strategy=SOON)
    async def handle(body: dict[str, Any]) -> int:
        return int(body["number"])

    publisher(handle)
    await publish_keyed(broker, postgres, ("k", 1), ("k", 2))
    inbox, came = Inbox(postgres.engine, table=inbox_table, consumer=endpoint.name), list[str]()

    class Count(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            came.append(msg.headers["outbox_sequence"])
            return await call_next(msg)

    async with endpoint.listening(Count, inbox) as messages, started(broker):
        assert [await (await messages.get()).decode() for _ in range(2)] == [1, 2]
        await until(lambda: len(came) == 4)
    assert came == ["1", "1", "1", "2"]
    assert messages.empty()


@pytest.mark.parametrize("endpoint", ["jetstream"], indirect=True)
async def test_a_stream_takes_each_answer_once_however_often_its_row_is_tried(
    postgres: PostgresBackend, endpoint: Endpoint
) -> None:
    broker, there = broker_on(postgres), endpoint.broker()
    subjects = [f"{endpoint.name}.a", f"{endpoint.name}.b"]
    stream = JStream(f"s{endpoint.name}", subjects=[f"{endpoint.name}.>"])

    first: Any = there.publisher(subjects[0], stream=stream)
    publishers: list[Decorator] = [first, there.publisher(subjects[1], stream=stream)]

    handled: list[Any] = []

    @publishers[1]
    @publishers[0]
    @broker.subscriber("q", retry_strategy=SOON)
    async def handle(body: str, message: OutboxMessage) -> str:
        handled.append(message.raw_message)
        return body

    fail_behind(first, times=2)
    async with postgres.transaction() as session:
        await broker.publish("x", queue="q", session=session)
    async with started(broker):
        await until_empty(postgres)
    async with endpoint.broker() as reader:
        client = reader.config.connection_state.stream
        state = (await client.stream_info(stream.name)).state
        stored = [await client.get_msg(stream.name, seq) for seq in range(state.first_seq, state.last_seq + 1)]
    assert sorted(each.subject for each in stored) == subjects
    assert [row.attempts_count for row in handled] == [0, 1, 2]
