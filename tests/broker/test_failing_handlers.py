"""Handlers and rows that misbehave: the row is settled, its neighbours are unaffected, nothing is lost in silence."""

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SkipMessage, StopConsume

from faststream_outbox import ConstantRetry, NoRetry
from faststream_outbox.annotations import OutboxMessage
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.waiting import until, until_empty

SOON = ConstantRetry(delay_seconds=0.01, max_attempts=3)


async def test_a_cancellation_that_leaks_is_a_failed_attempt(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), Counter[int]()

    @broker.subscriber("q", retry_strategy=SOON)
    async def handle(number: int) -> None:
        calls[number] += 1
        if calls[number] == 1:
            task = asyncio.create_task(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(task.cancel)
            await task

    async with started(broker):
        await publish(broker, postgres, *range(5))
        await until_empty(postgres)
    assert calls == dict.fromkeys(range(5), 2)


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR])
async def test_a_message_let_go_of_is_kept_and_told(postgres: PostgresBackend, policy: AckPolicy) -> None:
    records = Records()
    broker = broker_on(postgres, records)

    @broker.subscriber("q", ack_policy=policy)
    async def handle(_body: bytes) -> None:
        raise ValueError("no")

    async with started(broker):
        await publish(broker, postgres, b"1")
        await until_empty(postgres)
    [letter] = await postgres.dead_letters()
    assert letter.failure_reason == "rejected"
    assert letter.last_exception is not None
    assert "ValueError: no" in letter.last_exception
    [record] = records.named("dead_lettered")
    assert (record.row_id, record.queue, record.levelno) == (letter.original_id, "q", logging.ERROR)


async def test_manual_without_a_verdict_is_a_retry(postgres: PostgresBackend) -> None:
    broker, calls = broker_on(postgres), list[int]()

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL, retry_strategy=SOON)
    async def handle(_body: bytes, message: OutboxMessage) -> None:
        calls.append(message.raw_message.attempts_count)
        if len(calls) == 3:
            await message.ack()

    async with started(broker):
        await publish(broker, postgres, b"1")
        await until_empty(postgres)
    assert calls == [0, 1, 2]
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("policy", [AckPolicy.MANUAL, AckPolicy.NACK_ON_ERROR])
@pytest.mark.parametrize(
    ("verdict", "dead"),
    [("ack", 0), ("reject", 1), ("nack", 1)],
)
async def test_the_first_verdict_stands(postgres: PostgresBackend, policy: AckPolicy, verdict: str, dead: int) -> None:
    broker, calls = broker_on(postgres), list[int]()

    @broker.subscriber("q", ack_policy=policy, retry_strategy=ConstantRetry(delay_seconds=0.01, max_attempts=2))
    async def handle(_body: bytes, message: OutboxMessage) -> None:
        calls.append(1)
        await getattr(message, verdict)()
        await message.ack()
        await message.reject()
        raise ValueError("too late")

    async with started(broker):
        await publish(broker, postgres, b"1")
        await until_empty(postgres)
    assert len(await postgres.dead_letters()) == dead
    assert len(calls) == (2 if verdict == "nack" else 1)


async def test_a_delay_of_the_handlers_own_wins_over_the_strategy(postgres: PostgresBackend) -> None:
    broker, attempts = broker_on(postgres), list[int]()

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(_body: bytes, message: OutboxMessage) -> None:
        attempts.append(message.raw_message.attempts_count)
        if len(attempts) < 3:
            raise NackMessage(delay=0.01)

    async with started(broker):
        await publish(broker, postgres, b"1")
        await until_empty(postgres)
    assert attempts == [0, 1, 2]


@pytest.mark.parametrize("delay", [1e300, 10**400, float("nan"), -1], ids=["1e300", "10**400", "nan", "-1"])
@pytest.mark.parametrize("by", ["nack", "NackMessage"])
async def test_a_delay_that_is_nonsense_is_refused_and_the_strategy_decides(
    postgres: PostgresBackend, by: str, delay: float
) -> None:
    broker, attempts = broker_on(postgres), list[int]()

    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.01))
    async def handle(_body: bytes, message: OutboxMessage) -> None:
        attempts.append(message.raw_message.attempts_count)
        if len(attempts) == 1 and by == "NackMessage":
            raise NackMessage(delay=delay)
        if len(attempts) == 1:
            with pytest.raises(ValueError, match="delay is a finite number from 0 to"):
                await message.nack(delay=delay)
            raise LookupError

    async with started(broker):
        await publish(broker, postgres, b"1")
        await until_empty(postgres)
    assert attempts == [0, 1]


@pytest.mark.parametrize(
    ("raised", "dead"), [(AckMessage(), 0), (RejectMessage(), 1), (NackMessage(), 1), (SkipMessage(), 1)]
)
async def test_verdicts_by_exception(postgres: PostgresBackend, raised: Exception, dead: int) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(_body: bytes) -> None:
        raise raised

    async with started(broker):
        await publish(broker, postgres, b"1")
        await until_empty(postgres)
    assert len(await postgres.dead_letters()) == dead


class UnspeakableError(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


@pytest.mark.parametrize(
    "raised",
    [ValueError("nul \x00 and surrogate \ud800"), UnspeakableError(), ValueError("x" * 50_000_000)],
    ids=["nul", "unspeakable", "huge"],
)
async def test_any_exception_can_be_stored(postgres: PostgresBackend, raised: Exception) -> None:
    broker = broker_on(postgres, logger=None)

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(body: str) -> None:
        if body == "bad":
            raise raised

    async with started(broker):
        await publish(broker, postgres, "good", "bad", "good")
        await until_empty(postgres)
    [letter] = await postgres.dead_letters()
    assert letter.payload == b"bad"
    assert letter.last_exception
    assert type(raised).__name__ in letter.last_exception
    assert len(letter.last_exception.encode()) <= 8192


async def test_what_is_stored_of_an_exception_can_be_redacted(postgres: PostgresBackend) -> None:
    def render(error: BaseException) -> str | None:
        if isinstance(error, KeyError):
            return None
        if type(error) is TypeError:
            raise RuntimeError("broken renderer")
        return type(error).__name__

    broker = broker_on(postgres, last_exception_renderer=render)
    errors = {0: ValueError("secret"), 1: KeyError("secret"), 2: TypeError("secret")}

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(number: int) -> None:
        raise errors[number]

    async with started(broker):
        await publish(broker, postgres, 0, 1, 2)
        await until_empty(postgres)
    texts = {letter.payload: letter.last_exception for letter in await postgres.dead_letters()}
    assert texts[b"0"] == "ValueError"
    assert texts[b"1"] is None
    assert "secret" not in str(texts[b"2"])
    assert "TypeError" in str(texts[b"2"])


async def test_rows_that_others_wrote_by_hand(postgres: PostgresBackend) -> None:
    broker, bodies = broker_on(postgres), list[Any]()

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(message: OutboxMessage) -> None:
        bodies.append(await message.decode())

    values = {
        "not json": "('q', '\\x7b7b'::bytea, '{\"content-type\": \"application/json\"}')",
        "array": "('q', '1'::bytea, '[1, 2]')",
        "scalar": "('q', '1'::bytea, '\"text\"')",
        "odd headers": "('q', '2'::bytea, '{\"content-type\": 7, \"correlation_id\": [1], \"reply_to\": {}}')",
        "null headers": "('q', '3'::bytea, NULL)",
        "json null": "('q', '4'::bytea, 'null')",
        "empty": "('q', ''::bytea, NULL)",
        "good": "('q', '5'::bytea, '{}')",
    }
    await postgres.run(
        f"INSERT INTO outbox (queue, payload, headers) VALUES {', '.join(values.values())}".replace(":", "\\:")
    )
    async with started(broker):
        await until_empty(postgres)
    assert bodies == [2, 3, 4, b"", 5]
    assert len(await postgres.dead_letters()) == 3


async def test_a_hundred_megabytes(postgres: PostgresBackend) -> None:
    broker, sizes = broker_on(postgres), list[int]()

    @broker.subscriber("q")
    async def handle(body: bytes) -> None:
        sizes.append(len(body))

    async with started(broker):
        await publish(broker, postgres, b"\x00", b"\xff" * 100_000_000, b"\x00")
        await until_empty(postgres)
    assert sorted(sizes) == [1, 1, 100_000_000]


async def test_a_strategy_that_fails_does_not_keep_the_row(postgres: PostgresBackend) -> None:
    class Broken(ConstantRetry):
        def get_next_attempt_at(self, **_attempt: Any) -> Any:
            raise RuntimeError("broken strategy")

    records = Records()
    broker = broker_on(postgres, records)

    @broker.subscriber("q", retry_strategy=Broken(delay_seconds=1))
    async def handle(_body: bytes) -> None:
        raise ValueError

    async with started(broker):
        await publish(broker, postgres, b"1")
        await until(lambda: records.named("retry_scheduled"))
    [row] = await postgres.rows()
    assert (row.attempts_count, row.acquired_token) == (1, None)
    assert records.named("retry_strategy_failed")


async def test_stop_consume_stops_the_subscriber_and_no_other(postgres: PostgresBackend) -> None:
    broker, handled = broker_on(postgres), list[str]()

    @broker.subscriber("q")
    async def stop(_body: bytes) -> None:
        raise StopConsume

    @broker.subscriber("other")
    async def handle(body: str) -> None:
        handled.append(body)

    async with started(broker):
        await publish(broker, postgres, b"1")
        [subscriber] = [each for each in broker.subscribers if "q" in each.queues]  # type: ignore[attr-defined]
        await until(lambda: not subscriber.running)
        await publish(broker, postgres, b"2")
        await publish(broker, postgres, "still here", queue="other")
        await until(lambda: handled)
        assert await broker.ping()
    assert [row.queue for row in await postgres.rows()] == ["q", "q"]
