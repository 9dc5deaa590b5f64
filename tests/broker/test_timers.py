"""Timers through the broker: when they fire, and for how long their name is taken."""

import asyncio
from datetime import timedelta
from typing import Any

from faststream_outbox import ConstantRetry
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.waiting import until, until_empty

# So long that whatever comes in time did not come by polling.
SELDOM: dict[str, Any] = {"min_fetch_interval": 600.0, "max_fetch_interval": 600.0}


async def test_a_timer_fires_when_it_is_due_not_at_the_next_look(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    fired = asyncio.Queue[str]()

    @broker.subscriber("q", **SELDOM)
    async def handle(name: str) -> None:
        fired.put_nowait(name)

    async with postgres.transaction() as session:
        await broker.publish("before the start", queue="q", session=session, activate_in=timedelta(seconds=0.3))
    async with started(broker):
        async with postgres.transaction() as session:
            for seconds in (2.0, 0.6, 1.2):
                delay = timedelta(seconds=seconds)
                await broker.publish(f"{seconds}", queue="q", session=session, activate_in=delay)
        assert [await fired.get() for _ in range(4)] == ["before the start", "0.6", "1.2", "2.0"]


async def test_a_name_is_taken_until_its_message_is_settled(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    began, may_end = asyncio.Event(), asyncio.Event()

    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=3600), **SELDOM)
    async def handle(fails: bool) -> None:
        began.set()
        await may_end.wait()
        if fails:
            raise ValueError

    async def publish(*, fails: bool) -> int | None:
        async with postgres.transaction() as session:
            return await broker.publish(fails, queue="q", session=session, timer_id="t")

    async def cancel() -> bool:
        async with postgres.transaction() as session:
            return await broker.cancel_timer(queue="q", timer_id="t", session=session)

    async with started(broker):
        assert await publish(fails=True) is not None
        await began.wait()
        assert await publish(fails=True) is None  # it is being delivered
        assert not await cancel()
        may_end.set()
        await until(postgres.rows, lambda found: found[0].attempts_count)
        assert await publish(fails=True) is None  # it waits for its retry
        assert await cancel()
        assert await publish(fails=False) is not None
        await until_empty(postgres)
        assert await publish(fails=False) is not None


async def test_a_timer_is_replaced_in_one_transaction(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    timer: dict[str, Any] = {"queue": "q", "timer_id": "t"}

    async def publish(body: str, *, replaces: bool) -> int | None:
        async with postgres.transaction() as session:
            if replaces:
                assert await broker.cancel_timer(**timer, session=session)
            delay = timedelta(hours=1)
            return await broker.publish(body, **timer, session=session, activate_in=delay, timer_conflict="extend")

    assert await publish("first", replaces=False) is not None
    assert await publish("second", replaces=False) is None
    assert [row.payload for row in await postgres.rows()] == [b"first"]
    assert await publish("third", replaces=True) is not None
    assert [row.payload for row in await postgres.rows()] == [b"third"]
