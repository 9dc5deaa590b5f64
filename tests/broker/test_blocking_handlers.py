"""Handlers that end tasks, stop brokers or take their time: the others go on."""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from operator import contains

import pytest
from faststream import AckPolicy
from faststream.exceptions import StopConsume
from sqlalchemy import text

from faststream_outbox import ConstantRetry, NoRetry, OutboxResponse
from faststream_outbox.annotations import OutboxMessage
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.waiting import until, until_empty

NOBODY_POLLS = {"min_fetch_interval": 300.0, "max_fetch_interval": 300.0}


class AbortError(BaseException):
    pass


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise TimeoutError from None  # as timeouts did before there was `uncancel`


async def abort() -> None:
    raise AbortError


async def generator_exit() -> None:
    raise GeneratorExit


async def group() -> None:
    raise BaseExceptionGroup("several", [asyncio.CancelledError()])


@pytest.mark.parametrize("error", [AbortError, StopIteration, KeyError])
@pytest.mark.parametrize("driver", ["asyncpg"])
async def test_no_exception_of_a_handler_in_a_thread_ends_its_worker(
    postgres: PostgresBackend, error: type[BaseException]
) -> None:
    broker, calls = broker_on(postgres, logger=None), Counter[int]()

    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.01, max_attempts=2))
    def handle(number: int) -> None:
        calls[number] += 1
        if number == 0:
            raise error

    async with started(broker):
        await publish(broker, postgres, 0, 1, 2)
        await until_empty(postgres)
        await until(broker.ping)  # a worker is replaced in a moment
    assert calls == {0: 2, 1: 1, 2: 1}
    assert [letter.payload for letter in await postgres.dead_letters()] == [b"0"]


@pytest.mark.parametrize("misbehave", [cancel_itself, abort, generator_exit, group])
@pytest.mark.parametrize("driver", ["asyncpg"])
async def test_no_handler_ends_its_worker(postgres: PostgresBackend, misbehave: Callable[[], object]) -> None:
    broker, calls = broker_on(postgres, logger=None), Counter[int]()

    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.01, max_attempts=2))
    async def handle(number: int) -> None:
        calls[number] += 1
        if number == 0:
            await misbehave()  # type: ignore[misc] # a coroutine, each of them

    async with started(broker):
        await publish(broker, postgres, 0, 1, 2)
        await until_empty(postgres)
        await until(broker.ping)  # a worker is replaced in a moment
    assert calls == {0: 2, 1: 1, 2: 1}
    assert [letter.payload for letter in await postgres.dead_letters()] == [b"0"]


async def test_a_suspect_waits_for_a_slow_handler_and_nobody_else_does(postgres: PostgresBackend) -> None:
    broker, seen, release = broker_on(postgres), list[int](), asyncio.Event()

    @broker.subscriber("q", max_workers=4, lease_ttl_seconds=3, min_fetch_interval=0.1, max_fetch_interval=0.2)
    async def handle(number: int) -> None:
        seen.append(number)
        if number == 1000:
            await release.wait()

    async with started(broker):
        await publish(broker, postgres, 1000)
        await until(lambda: seen)
        await publish(broker, postgres, 500, queue="elsewhere")
        await postgres.run(
            "UPDATE outbox SET queue = 'q', acquired_token = gen_random_uuid(), lease_expires_at = now(), "
            "deliveries_count = 2 WHERE queue = 'elsewhere'"
        )
        await asyncio.sleep(0.5)
        await publish(broker, postgres, *range(5))
        await until(lambda: len(seen) == 6)
        assert 500 not in seen
        release.set()
        await until_empty(postgres)
    assert sorted(seen) == [0, 1, 2, 3, 4, 500, 1000]


async def test_a_commit_that_comes_late_is_found_soon(postgres: PostgresBackend) -> None:
    """Its row lies before those that were claimed meanwhile."""
    broker, handled = broker_on(postgres), list[int]()

    @broker.subscriber("q", **NOBODY_POLLS)  # type: ignore[arg-type] # the two intervals
    async def handle(number: int) -> None:
        handled.append(number)

    async with started(broker):
        for first in range(0, 20, 2):
            async with postgres.sessions() as late:
                await late.begin()
                await broker.publish(first, queue="q", session=late)
                await publish(broker, postgres, first + 1)
                await until(partial(contains, handled, first + 1))
                await late.commit()
            await until(partial(contains, handled, first))
    assert sorted(handled) == list(range(20))


async def test_rows_of_a_dead_process_are_found_when_their_lease_is_over(postgres: PostgresBackend) -> None:
    broker, handled = broker_on(postgres), list[int]()

    @broker.subscriber("q", lease_ttl_seconds=1, **NOBODY_POLLS)  # type: ignore[arg-type] # the two intervals
    async def handle(number: int) -> None:
        handled.append(number)

    await publish(broker, postgres, 1)
    await postgres.run(
        "UPDATE outbox SET acquired_token = gen_random_uuid(), lease_expires_at = now() + interval '1 s'"
    )
    async with started(broker):
        await until(lambda: handled)


async def test_what_is_given_back_is_told_to_others(postgres: PostgresBackend) -> None:
    busy, idle = broker_on(postgres, graceful_timeout=0.1), broker_on(postgres)
    begun, handled = asyncio.Event(), list[int]()

    @busy.subscriber("q")
    async def hold(_number: int) -> None:
        begun.set()
        await asyncio.sleep(60)

    @idle.subscriber("q", **NOBODY_POLLS)  # type: ignore[arg-type] # the two intervals
    async def handle(number: int) -> None:
        handled.append(number)

    async with started(busy):
        await publish(busy, postgres, *range(5))
        await begun.wait()
        async with started(idle):
            await busy.stop()
            await until(lambda: len(handled) >= 4)


@pytest.mark.parametrize(("verdict", "left", "dead"), [("ack", 0, 0), ("reject", 0, 1), ("nack", 1, 0)])
async def test_a_verdict_stands_although_the_handler_is_cut_short(
    postgres: PostgresBackend, verdict: str, left: int, dead: int
) -> None:
    broker, decided = broker_on(postgres, graceful_timeout=0.1), asyncio.Event()

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL)
    async def handle(_number: int, message: OutboxMessage) -> None:
        await (message.nack(delay=100) if verdict == "nack" else getattr(message, verdict)())
        decided.set()
        await asyncio.sleep(60)

    async with started(broker):
        await publish(broker, postgres, 1)
        await decided.wait()
    assert len(await postgres.rows()) == left
    assert len(await postgres.dead_letters()) == dead


@pytest.mark.parametrize("policy", [AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.NACK_ON_ERROR])
async def test_whoever_stops_has_not_handled_the_message(postgres: PostgresBackend, policy: AckPolicy) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", ack_policy=policy)
    async def handle(_number: int) -> None:
        raise StopConsume

    async with started(broker):
        await publish(broker, postgres, 1)
        [subscriber] = broker.subscribers
        await until(lambda: not subscriber.running)
    assert len(await postgres.rows()) == 1
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("graceful_timeout", [30, None])
async def test_a_handler_may_stop_its_own_broker(postgres: PostgresBackend, graceful_timeout: float | None) -> None:
    broker, ended = broker_on(postgres, graceful_timeout=graceful_timeout), asyncio.Event()

    @broker.subscriber("q")
    async def handle(_number: int) -> None:
        await broker.stop()
        ended.set()

    async with started(broker):
        await publish(broker, postgres, 1)
        await ended.wait()
        await until_empty(postgres)


async def test_starting_while_stopping(postgres: PostgresBackend) -> None:
    broker, handled, go_on = broker_on(postgres), list[int](), asyncio.Event()

    @broker.subscriber("q")
    async def handle(number: int) -> None:
        handled.append(number)
        await go_on.wait()

    async with started(broker):
        await publish(broker, postgres, 1)
        await until(lambda: handled)
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0.05)
        starting = asyncio.create_task(broker.start())
        go_on.set()
        await asyncio.gather(stopping, starting)
        await broker.start()
        await publish(broker, postgres, 2)
        await until(lambda: 2 in handled)
        assert await broker.ping()


async def test_a_locked_row_is_not_chased(postgres: PostgresBackend) -> None:
    claims: Counter[str] = Counter()
    broker = broker_on(postgres, metrics_recorder=lambda event, _tags: claims.update([event]))

    @broker.subscriber("q", min_fetch_interval=5, max_fetch_interval=10)
    async def handle(_number: int) -> None: ...

    await publish(broker, postgres, 1)
    async with postgres.engine.connect() as connection:
        await connection.execute(text("SELECT 1 FROM outbox FOR UPDATE"))
        async with started(broker):
            await asyncio.sleep(1.5)
            assert claims["fetched"] < 30
            await connection.rollback()
            await until_empty(postgres)


async def test_an_unreadable_row_is_not_kept_by_whoever_pulls(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    subscriber = broker.subscriber("q", retry_strategy=NoRetry())
    async with started(broker):
        await publish(broker, postgres, 1)
        await postgres.run("UPDATE outbox SET headers = '[1]'")
        with pytest.raises(ValueError, match="no JSON object"):
            await subscriber.get_one()
    assert len(await postgres.dead_letters()) == 1


async def test_a_response_goes_to_its_queue_once_and_to_every_publisher(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.publisher("a")
    @broker.publisher("b", headers={"correlation_id": "of the publisher"})
    @broker.subscriber("q")
    async def handle(number: int) -> OutboxResponse:
        return OutboxResponse(number, queue="c")

    @broker.subscriber("own")
    async def answer(number: int) -> OutboxResponse:
        return OutboxResponse(number, queue="d", headers={"correlation_id": "mine"})

    async with started(broker):
        await publish(broker, postgres, 1)
        await publish(broker, postgres, 2, queue="own")
        await until_written(postgres, 4)
    rows = {row.queue: row.headers or {} for row in await postgres.rows()}
    assert sorted(rows) == ["a", "b", "c", "d"]
    assert rows["b"]["correlation_id"] == "of the publisher"
    assert rows["d"]["correlation_id"] == "mine"
    assert await postgres.dead_letters() == []


async def until_written(postgres: PostgresBackend, count: int) -> None:
    await until(postgres.rows, lambda found: not {row.queue for row in found} & {"q", "own"} and len(found) >= count)
