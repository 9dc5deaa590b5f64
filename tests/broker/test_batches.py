"""Handlers that take many messages in one call."""

import asyncio
import gc
from itertools import chain
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, BaseMiddleware, Context
from faststream.exceptions import SetupError
from pydantic import BaseModel

from faststream_outbox import ConstantRetry, NoRetry, OutboxResponse
from faststream_outbox.annotations import OutboxBatchMessage, OutboxBroker, OutboxMessage
from faststream_outbox.message import OutboxDelivery
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.waiting import until, until_empty

AT_ONCE = ConstantRetry(delay_seconds=0.0, max_attempts=50)


class Order(BaseModel):
    id: int


async def test_a_handler_gets_all_that_is_there_in_one_call(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[Order]]()

    @broker.subscriber("q", batch=True)
    async def handle(orders: list[Order]) -> None:
        calls.append(orders)

    await publish(broker, postgres, *({"id": n} for n in range(300)))
    async with started(broker):
        await until_empty(postgres)
    assert calls == [[Order(id=n) for n in range(300)]]


async def test_a_call_has_no_more_than_max_records(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", batch=True, max_records=4)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)

    await publish(broker, postgres, *range(10))
    async with started(broker):
        await until_empty(postgres)
    assert calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_messages_that_come_while_a_batch_runs_make_the_next_one(postgres: PostgresBackend) -> None:
    broker, calls, may_end = broker_on(postgres), list[list[int]](), asyncio.Event()

    @broker.subscriber("q", batch=True)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)
        await may_end.wait()

    async with started(broker):
        await publish(broker, postgres, 1)
        await until(lambda: calls)
        await publish(broker, postgres, 2)
        await publish(broker, postgres, 3)
        may_end.set()
        await until(lambda: [*chain(*calls)] == [1, 2, 3])
    assert calls[0] == [1]


async def test_a_message_waits_for_others_no_longer_than_max_wait_ms(postgres: PostgresBackend) -> None:
    """They keep coming, one at a time and sooner than that: whoever waited for a quiet moment would wait for ever."""
    broker, calls, published = broker_on(postgres), list[list[int]](), 0

    @broker.subscriber("q", batch=True, max_wait_ms=300)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)

    async with started(broker):
        while not calls:
            await publish(broker, postgres, published)
            published += 1
            await asyncio.sleep(0.05)
        await until_empty(postgres)
    assert calls[0] == list(range(len(calls[0])))
    assert len(calls[0]) > 1


async def test_a_full_batch_does_not_wait(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", batch=True, max_records=3, max_wait_ms=20_000)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)

    async with started(broker):
        await publish(broker, postgres, 1, 2)
        await publish(broker, postgres, 3)
        await until_empty(postgres, seconds=15)
    assert calls == [[1, 2, 3]]


async def test_stopping_does_not_wait_for_company(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", batch=True, max_wait_ms=20_000)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)

    await publish(broker, postgres, 1)
    async with started(broker):
        await until_claimed(postgres)
    assert calls == [[1]]
    assert not await postgres.rows()


async def until_claimed(postgres: PostgresBackend) -> None:
    await until(postgres.rows, lambda found: all(row.acquired_token for row in found))


async def test_what_a_batch_raises_fails_every_row_through_the_strategy(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    failed = asyncio.Event()

    @broker.subscriber("q", batch=True, retry_strategy=ConstantRetry(delay_seconds=3600))
    async def handle(numbers: list[int]) -> None:
        failed.set()
        raise ValueError(numbers)

    await publish(broker, postgres, *range(5))
    async with started(broker):
        await failed.wait()
    rows = await postgres.rows()
    assert [row.attempts_count for row in rows] == [1] * 5
    assert all(row.next_attempt_epoch - row.last_attempt_epoch > 3500 for row in rows if row.last_attempt_epoch)
    assert all(row.last_attempt_epoch for row in rows)


@pytest.mark.parametrize("strategy", [AT_ONCE, NoRetry(), ConstantRetry(delay_seconds=0.0, max_attempts=2)])
async def test_one_poison_row_is_found_by_halving_and_dies_alone(postgres: PostgresBackend, strategy: Any) -> None:
    """Even if the strategy would have given up long before: what failed in company is not given up."""
    broker, calls, done = broker_on(postgres), list[list[int]](), set[int]()

    @broker.subscriber("q", batch=True, retry_strategy=strategy)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)
        if 13 in numbers:
            raise ValueError(13)
        done.update(numbers)

    await publish(broker, postgres, *range(32))
    async with started(broker):
        await until_empty(postgres)
    assert done == set(range(32)) - {13}
    [dead] = await postgres.dead_letters()
    assert (dead.payload, dead.failure_reason) == (b"13", "retry_terminal")
    sizes = [len(call) for call in calls if 13 in call]
    assert sizes[:6] == [32, 16, 8, 4, 2, 1]
    assert len(calls) < 2 * 6 + len(sizes)


@pytest.mark.parametrize("limit", [2, 3])
async def test_max_deliveries_buries_no_innocents(postgres: PostgresBackend, limit: int) -> None:
    broker, done = broker_on(postgres), set[int]()

    @broker.subscriber("q", batch=True, max_deliveries=limit, retry_strategy=AT_ONCE)
    async def handle(numbers: list[int]) -> None:
        if 13 in numbers:
            raise ValueError(13)
        done.update(numbers)

    await publish(broker, postgres, *range(32))
    async with started(broker):
        await until_empty(postgres)
    assert done == set(range(32)) - {13}
    assert [each.payload for each in await postgres.dead_letters()] == [b"13"]


async def test_a_failed_batch_comes_back_in_halves_although_delays_are_scattered(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()
    scattered = ConstantRetry(delay_seconds=0.5, jitter_factor=0.9)

    @broker.subscriber("q", batch=True, retry_strategy=scattered)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)
        if len(calls) == 1:
            raise ValueError

    await publish(broker, postgres, *range(64))
    async with started(broker):
        await until_empty(postgres)
    assert [len(call) for call in calls] == [64, 32, 32]


async def test_crashes_count_as_deliveries_in_batches_too(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", batch=True, max_deliveries=2)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)

    await publish(broker, postgres, 1)
    await postgres.run(
        "UPDATE outbox SET deliveries_count = 2, acquired_token = gen_random_uuid(), lease_expires_at = now()"
    )
    async with started(broker):
        await until_empty(postgres)
    assert not calls
    assert [dead.failure_reason for dead in await postgres.dead_letters()] == ["max_deliveries"]


async def test_a_process_that_knows_nothing_of_a_failure_halves_by_deliveries(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[int]()

    @broker.subscriber("q", batch=True, max_records=8)
    async def handle(numbers: list[int]) -> None:
        calls.append(len(numbers))

    await publish(broker, postgres, *range(8))
    await postgres.run("UPDATE outbox SET attempts_count = 1, deliveries_count = 2")
    async with started(broker):
        await until_empty(postgres)
    assert calls == [2, 2, 2, 2]


async def test_single_messages_have_verdicts_of_their_own(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", batch=True, retry_strategy=NoRetry())
    async def handle(numbers: list[int], batch: OutboxBatchMessage) -> None:
        calls.append(numbers)
        for number, message in zip(numbers, batch.messages, strict=True):
            if number == 1:
                await message.reject()
            if number == 2:
                await message.nack(delay=3600)
            if number == 3:
                await message.nack()

    await publish(broker, postgres, *range(6))
    async with started(broker):
        await until(lambda: calls)
    assert [(row.payload, row.attempts_count) for row in await postgres.rows()] == [(b"2", 1)]
    dead = {(each.payload, each.failure_reason) for each in await postgres.dead_letters()}
    assert dead == {(b"1", "rejected"), (b"3", "retry_terminal")}
    assert len(calls) == 1


async def test_what_was_acked_before_a_batch_failed_is_done(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", batch=True, retry_strategy=AT_ONCE)
    async def handle(numbers: list[int], batch: OutboxBatchMessage) -> None:
        calls.append(numbers)
        await batch.messages[0].ack()
        if len(calls) == 1:
            raise ValueError

    await publish(broker, postgres, 1, 2, 3)
    async with started(broker):
        await until_empty(postgres)
    assert calls[0] == [1, 2, 3]
    assert sorted(chain(*calls[1:])) == [2, 3]


async def test_without_a_verdict_a_manual_batch_is_retried(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", batch=True, ack_policy=AckPolicy.MANUAL, retry_strategy=AT_ONCE)
    async def handle(numbers: list[int], message: OutboxMessage) -> None:
        calls.append(numbers)
        if len(calls) > 1:
            await message.ack()

    await publish(broker, postgres, 1, 2)
    async with started(broker):
        await until_empty(postgres)
    assert calls == [[1, 2], [1], [2]]


async def test_a_rejecting_policy_rejects_the_whole_batch(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", batch=True, ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(numbers: list[int]) -> None:
        raise ValueError(numbers)

    await publish(broker, postgres, 1, 2)
    async with started(broker):
        await until_empty(postgres)
    assert {each.failure_reason for each in await postgres.dead_letters()} == {"rejected"}


async def test_one_row_that_cannot_be_read_does_not_take_the_others_along(postgres: PostgresBackend) -> None:
    broker, done = broker_on(postgres), set[int]()

    @broker.subscriber("q", batch=True, retry_strategy=NoRetry())
    async def handle(numbers: list[int]) -> None:
        done.update(numbers)

    await publish(broker, postgres, *range(8))
    await postgres.run("UPDATE outbox SET headers = '[1]' WHERE payload = '3'")
    await postgres.run("UPDATE outbox SET payload = 'no JSON' WHERE payload = '5'")
    async with started(broker):
        await until_empty(postgres)
    assert done == set(range(8)) - {3, 5}
    assert {each.payload for each in await postgres.dead_letters()} == {b"3", b"no JSON"}


async def test_json_is_read_in_every_encoding_that_faststream_reads(postgres: PostgresBackend) -> None:
    encodings = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32")
    broker, calls = broker_on(postgres), list[list[Any]]()

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[Any]) -> None:
        calls.append(bodies)

    json = {"content-type": "application/json"}
    async with postgres.transaction() as session:
        for encoding in encodings:
            await broker.publish('{"für": "Ada"}'.encode(encoding), queue="q", headers=json, session=session)
    async with started(broker):
        await until_empty(postgres)
    assert calls == [[{"für": "Ada"}] * len(encodings)]


async def test_messages_do_not_stay_until_the_garbage_collector_comes(postgres: PostgresBackend) -> None:
    """Thousands a second would: its work, and memory for all of their bodies until then."""
    broker = broker_on(postgres)

    @broker.subscriber("q", batch=True)
    async def handle(numbers: list[int]) -> None:
        assert numbers

    def alive() -> int:
        # By type(): lazy objects of other libraries would be made by isinstance().
        return sum(issubclass(type(each), OutboxDelivery) for each in gc.get_objects())

    await publish(broker, postgres, *range(100))
    gc.collect()
    gc.disable()
    try:
        before = alive()  # handlers of other tests, which will never end
        async with started(broker):
            await until_empty(postgres)
        assert alive() == before
    finally:
        gc.enable()


async def test_what_a_batch_returns_is_published_once_and_with_its_settling(postgres: PostgresBackend) -> None:
    broker, answers = broker_on(postgres), list[Any]()

    @broker.publisher("answers")
    @broker.subscriber("q", batch=True)
    async def handle(numbers: list[int]) -> int:
        return sum(numbers)

    @broker.subscriber("answers")
    async def collect(number: int, message: OutboxMessage) -> None:
        answers.append((number, message.correlation_id))

    async with postgres.transaction() as session:
        await broker.publish_batch(1, 2, 3, queue="q", session=session, correlation_id="c")
    async with started(broker):
        await until_empty(postgres)
    assert answers == [(6, "c")]


async def test_an_answer_goes_with_those_that_were_acked(postgres: PostgresBackend) -> None:
    """The first message, which the answer is kept with until then, is not among them."""
    broker = broker_on(postgres)
    called = asyncio.Event()

    @broker.subscriber("q", batch=True)
    async def handle(numbers: list[int], batch: OutboxBatchMessage) -> OutboxResponse:
        called.set()
        await batch.messages[0].nack(delay=3600)
        return OutboxResponse(sum(numbers), queue="answers")

    await publish(broker, postgres, 1, 2, 3)
    async with started(broker):
        await called.wait()
    assert {(row.queue, row.payload) for row in await postgres.rows()} == {("q", b"1"), ("answers", b"6")}


async def test_an_answer_is_not_written_if_one_of_its_messages_was_lost(postgres: PostgresBackend) -> None:
    records = Records()
    broker, calls = broker_on(postgres, records), list[list[int]]()
    go_on = asyncio.Event()

    @broker.publisher("answers")
    @broker.subscriber("q", batch=True)
    async def handle(numbers: list[int]) -> int:
        calls.append(numbers)
        await go_on.wait()
        return sum(numbers)

    await publish(broker, postgres, 1, 2, 3)
    async with started(broker):
        await until(lambda: calls)
        await postgres.run("UPDATE outbox SET acquired_token = gen_random_uuid() WHERE payload = '2'")
        go_on.set()
        await until(lambda: sorted(chain(*calls[1:])) == [1, 3])  # at once: their leases were not lost
    rows = {(row.queue, row.payload) for row in await postgres.rows()}
    assert rows in ({("q", b"2"), ("answers", b"4")}, {("q", b"2"), ("answers", b"1"), ("answers", b"3")})
    assert len(records.named("lease_lost")) == 1


async def test_middlewares_parser_decoder_and_filters_see_the_batch(postgres: PostgresBackend) -> None:
    seen = list[Any]()

    class Middleware(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.append(("middleware", [row.payload for row in msg.raw_message]))
            return await call_next(msg)

    async def parse(rows: Any, original: Any) -> Any:
        seen.append(("parser", len(rows)))
        return await original(rows)

    async def decode(message: Any, original: Any) -> Any:
        return [number * 10 for number in await original(message)]

    broker = broker_on(postgres, middlewares=[Middleware])
    subscriber = broker.subscriber("q", batch=True, parser=parse, decoder=decode)

    @subscriber(filter=lambda message: len(message.raw_message) > 100)
    async def never(numbers: list[int]) -> None:
        raise AssertionError(numbers)

    @subscriber
    async def handle(
        numbers: list[int], broker: OutboxBroker, headers: Annotated[list[Any], Context("message.batch_headers")]
    ) -> None:
        seen.append((numbers, broker is not None, [each["kind"] for each in headers]))

    async with postgres.transaction() as session:
        await broker.publish_batch(1, 2, queue="q", session=session, headers={"kind": "a"})
    async with started(broker):
        await until_empty(postgres)
    parsed, *rest = dict.fromkeys(map(repr, seen))  # for each of the two handlers
    assert parsed == repr(("parser", 2))
    assert rest == [repr(("middleware", [b"1", b"2"])), repr(([10, 20], True, ["a", "a"]))]


async def test_a_codec_decodes_batches(postgres: PostgresBackend) -> None:
    class Codec:
        async def encode(self, body: Any, serializer: Any = None) -> tuple[bytes, str | None]:
            del serializer
            return str(body).encode(), None

        async def decode(self, message: Any) -> Any:
            return int(message.body)

        async def encode_batch(self, bodies: Any, serializer: Any = None) -> Any:
            return [await self.encode(body, serializer) for body in bodies]

        async def decode_batch(self, message: Any) -> Any:
            return [int(body) + 100 for body in message.body]

    broker, calls = broker_on(postgres, codec=Codec()), list[list[int]]()

    @broker.subscriber("q", batch=True)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)

    await publish(broker, postgres, 1, 2)
    async with started(broker):
        await until_empty(postgres)
    assert calls == [[101, 102]]


async def test_rows_that_two_processes_died_with_come_alone(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[list[int]]()

    @broker.subscriber("q", batch=True)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)

    await publish(broker, postgres, 1, 2, 3)
    lost = "acquired_token = gen_random_uuid(), lease_expires_at = now()"
    await postgres.run(f"UPDATE outbox SET {lost}, deliveries_count = 2")
    async with started(broker):
        await until_empty(postgres)
    assert sorted(calls) == [[1], [2], [3]]


async def test_a_slow_batch_does_not_claim_what_it_cannot_run(postgres: PostgresBackend) -> None:
    """It runs with places left; but nobody gets onto a running call."""
    broker, calls, go_on = broker_on(postgres), list[list[int]](), asyncio.Event()

    @broker.subscriber("q", batch=True, max_records=10)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)
        await (asyncio.sleep(1.2) if len(calls) == 1 else go_on.wait())

    async with started(broker):
        await publish(broker, postgres, 0)
        await until(lambda: len(calls) == 1)
        await until_empty(postgres)  # now it knows that this handler is slow
        await publish(broker, postgres, 1)
        await until(lambda: len(calls) == 2)
        await publish(broker, postgres, *range(2, 12))
        await asyncio.sleep(0.3)
        free = [row for row in await postgres.rows() if row.acquired_token is None]
        assert len(free) == 10
        go_on.set()
        await until_empty(postgres)


async def test_messages_are_taken_one_by_one_from_a_batch_subscriber_too(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q", batch=True)
    await publish(broker, postgres, 7)
    async with started(broker):
        message = await subscriber.get_one(timeout=60)
        assert message is not None
        assert await message.decode() == [7]
        await message.ack()
    assert not await postgres.rows()


async def test_the_document_shows_a_list(postgres: PostgresBackend) -> None:
    from faststream.specification import AsyncAPI  # noqa: PLC0415 - only here

    broker = broker_on(postgres)

    @broker.subscriber("q", batch=True)
    async def handle(orders: list[Order]) -> None: ...

    document = AsyncAPI(broker, schema_version="3.0.0").to_specification().to_jsonable()
    schemas = document["components"]["schemas"]
    assert schemas.pop("Order")["properties"].keys() == {"id"}
    [orders] = schemas.values()
    assert (orders["type"], orders["items"]) == ("array", {"$ref": "#/components/schemas/Order"})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_records": 5}, "batch=True"),
        ({"max_wait_ms": 5}, "batch=True"),
        ({"batch": 5}, "max_records"),
        ({"batch": True, "max_records": 0}, "max_records"),
        ({"batch": True, "max_wait_ms": -1}, "max_wait_ms"),
        ({"batch": True, "max_wait_ms": 40_000}, "lease_ttl_seconds"),
    ],
)
async def test_nonsense_is_refused_where_it_is_written(
    postgres: PostgresBackend, options: dict[str, Any], text: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        broker_on(postgres).subscriber("q", **options)


async def test_halving_uses_up_no_attempts(postgres: PostgresBackend) -> None:
    """Nor does it wait ever longer: whoever was unlucky in its neighbours is soon handled, and has its own attempts."""
    broker, asked = broker_on(postgres), list[tuple[int, int]]()

    class Strategy:
        def get_next_attempt_delay(self, *, attempts_count: int, **_: Any) -> float | None:
            asked.append((attempts_count, len(calls[-1])))
            return None if attempts_count >= 3 else 0.0

    calls = list[list[int]]()

    @broker.subscriber("q", batch=True, retry_strategy=Strategy())
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)
        if 5 in numbers:
            raise ValueError(5)

    await publish(broker, postgres, *range(16))
    async with started(broker):
        await until_empty(postgres)
    assert {attempts for attempts, company in asked if company > 1} == {1}
    assert [attempts for attempts, company in asked if company == 1] == [2, 3]
    [dead] = await postgres.dead_letters()
    assert (dead.payload, dead.attempts_count) == (b"5", 3)


@pytest.mark.parametrize("body", [Order, int, dict[str, int]])
async def test_a_handler_of_one_message_is_refused(postgres: PostgresBackend, body: Any) -> None:
    broker = broker_on(postgres)

    async def handle(order: Any) -> None: ...

    handle.__annotations__["order"] = body
    broker.subscriber("q", batch=True)(handle)
    with pytest.raises(SetupError, match=r"annotate it as list\["):
        await broker.start()
    await broker.stop()


async def test_a_decoder_may_make_one_of_many(postgres: PostgresBackend) -> None:
    broker, seen = broker_on(postgres), list[dict[str, int]]()

    async def decode(message: Any, original: Any) -> dict[str, int]:
        return {"sum": sum(await original(message))}

    @broker.subscriber("q", batch=True, decoder=decode)
    async def handle(total: dict[str, int]) -> None:
        seen.append(total)

    await publish(broker, postgres, 1, 2, 3)
    async with started(broker):
        await until_empty(postgres)
    assert seen == [{"sum": 6}]
