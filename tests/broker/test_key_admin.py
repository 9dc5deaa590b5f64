"""The verbs of operators on a running broker: a key stops, goes on, or loses its head."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from faststream_outbox import ConstantRetry, KeyState, NoRetry, OutboxBroker, TestOutboxBroker
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.broker.test_ordering import publish_keyed
from tests.broker.test_parking import parked, until_parked
from tests.observers import LISTENERS
from tests.waiting import until, until_empty


class Bank:
    """A handler that fails on one number until it is mended; `woken` tells that its subscriber was called to look."""

    def __init__(self, postgres: PostgresBackend, **options: Any) -> None:
        self.broker, self.postgres = broker_on(postgres), postgres
        self.seen: list[int] = []
        self.poison: int | None = 2
        options = {"retry_strategy": NoRetry(), "on_dead": "park", **options}
        self.broker.subscriber("q", **options)(self.handle)
        self.woken = asyncio.Event()
        wakeup: Any = self.broker.config.wakeup
        wakeup.subscribe(["q"], self.woken.set)

    async def handle(self, body: dict[str, Any]) -> None:
        self.seen.append(body["number"])
        if body["number"] == self.poison:
            raise ValueError("no good")

    async def publish(self, *numbers: int) -> None:
        await publish_keyed(self.broker, self.postgres, *(("a", number) for number in numbers))

    async def keys(self, **options: Any) -> list[KeyState]:
        async with self.postgres.transaction() as session:
            return await self.broker.fetch_keys(session=session, **options)


async def test_retry_gives_all_attempts_again(postgres: PostgresBackend) -> None:
    bank = Bank(postgres, retry_strategy=ConstantRetry(delay_seconds=0, max_attempts=2))
    await bank.publish(1, 2, 3)
    async with started(bank.broker):
        await until_parked(postgres)
        [key] = await bank.keys()
        assert (key.key, key.state, key.attempts, key.waiting) == ("a", "parked", 2, 1)
        assert key.cause.startswith("retry_terminal: ValueError: no good")
        async with postgres.transaction() as session:
            assert await bank.broker.retry_key(queue="q", key="a", session=session)
        await until(lambda: bank.seen == [1, 2, 2, 2, 2])
        await until_parked(postgres)
        bank.poison = None
        async with postgres.transaction() as session:
            assert await bank.broker.retry_key(queue="q", key="a", session=session)
        await until_empty(postgres)
    assert bank.seen == [1, 2, 2, 2, 2, 2, 3]


async def test_release_gives_one_more_attempt(postgres: PostgresBackend) -> None:
    bank = Bank(postgres, retry_strategy=ConstantRetry(delay_seconds=0, max_attempts=2))
    await bank.publish(2, 3)
    async with started(bank.broker):
        await until_parked(postgres)
        async with postgres.transaction() as session:
            assert await bank.broker.release_key(queue="q", key="a", session=session)
            assert not await bank.broker.release_key(queue="q", key="a", session=session)
        await until(lambda: len(bank.seen) == 3)
        await until_parked(postgres)
    assert bank.seen == [2, 2, 2]
    assert await parked(postgres) == [("a", "retry_terminal", 3)]


async def test_what_was_delivered_too_often_is_delivered_after_a_release(postgres: PostgresBackend) -> None:
    bank = Bank(postgres, retry_strategy=ConstantRetry(delay_seconds=0, max_attempts=9), max_deliveries=2)
    await bank.publish(2)
    async with started(bank.broker):
        await until_parked(postgres)
        assert bank.seen == [2, 2]
        bank.poison = None
        async with postgres.transaction() as session:
            assert await bank.broker.release_key(queue="q", key="a", session=session)
        await until_empty(postgres)
    assert bank.seen == [2, 2, 2]


async def test_skip_goes_on_with_the_next(postgres: PostgresBackend) -> None:
    bank = Bank(postgres)
    await bank.publish(1, 2, 3)
    async with started(bank.broker):
        await until_parked(postgres)
        async with postgres.transaction() as session:
            [key] = await bank.broker.fetch_keys(session=session, queue="q", state="parked", limit=1)
            skipped = await bank.broker.skip_key(queue="q", key="a", reason="known, see the wiki", session=session)
            assert skipped == key.head_id
        await until_empty(postgres)
    assert bank.seen == [1, 2, 3]
    [dead] = await postgres.dead_letters()
    assert (dead.original_id, dead.failure_reason, dead.attempts_count) == (skipped, "rejected", 1)
    assert (dead.last_exception or "").startswith("known, see the wiki\n\nparked for retry_terminal: ValueError: no")


async def test_a_key_that_is_parked_before_it_is_claimed(postgres: PostgresBackend) -> None:
    bank = Bank(postgres)
    await bank.publish(1, 3)
    async with postgres.transaction() as session:
        assert await bank.broker.park_key(queue="q", key="a", reason="the bank is closed", session=session)
    async with started(bank.broker):
        await publish_keyed(bank.broker, postgres, ("a", 4), ("b", 5))
        await until(lambda: bank.seen == [5])
        async with postgres.engine.begin() as connection:
            assert await bank.broker.release_key(queue="q", key="a", session=connection)
        await until_empty(postgres)
    assert bank.seen == [5, 1, 3, 4]


async def test_a_handler_in_the_middle_of_it_is_left_alone(postgres: PostgresBackend) -> None:
    broker, running, go_on = broker_on(postgres), asyncio.Event(), asyncio.Event()

    @broker.subscriber("q")
    async def handle(body: dict[str, Any]) -> None:
        if body["number"] == 1:
            running.set()
            await go_on.wait()

    await publish_keyed(broker, postgres, ("a", 1), ("a", 2))
    async with started(broker):
        await running.wait()
        async with postgres.transaction() as session:
            where: Any = {"queue": "q", "key": "a", "session": session}
            assert not await broker.retry_key(**where)
            assert not await broker.park_key(**where, reason="x")
            assert not await broker.release_key(**where)
            assert await broker.skip_key(**where, reason="x") is None
            assert await broker.fetch_keys(session=session) == []
            [key] = await broker.fetch_keys(session=session, state="in_flight")
            assert (key.key, key.waiting) == ("a", 1)
        go_on.set()
        await until_empty(postgres)
    assert await postgres.dead_letters() == []


async def test_a_handler_that_hung_past_its_lease_settles_nothing_after_a_skip(postgres: PostgresBackend) -> None:
    broker, running, go_on = broker_on(postgres), asyncio.Event(), asyncio.Event()

    @broker.publisher("answers")
    @broker.subscriber("q")
    async def handle() -> int:
        running.set()
        await go_on.wait()
        return 1

    await publish_keyed(broker, postgres, ("a", 1))
    async with started(broker):
        await running.wait()
        async with postgres.transaction() as session:
            # As after a pause of the process: the lease ran out, and nobody was there to renew it. In one transaction
            # with the skip, so that neither a renewal nor another claim comes between.
            await session.execute(text("UPDATE outbox SET lease_expires_at = now() - interval '1 s'"))
            assert await broker.skip_key(queue="q", key="a", reason="x", session=session) is not None
        go_on.set()
    assert await postgres.rows() == []
    assert len(await postgres.dead_letters()) == 1


async def test_a_verb_that_is_rolled_back_wakes_nobody(postgres: PostgresBackend) -> None:
    bank = Bank(postgres)
    await bank.publish(2, 3)
    async with started(bank.broker):
        await until_parked(postgres)
        bank.woken.clear()
        async with postgres.sessions() as session:
            assert await bank.broker.retry_key(queue="q", key="a", session=session)
            await session.rollback()
        async with postgres.transaction() as session:
            assert await bank.broker.park_key(queue="q", key="a", reason="x", session=session) is False
        await asyncio.sleep(0.3)
        assert not bank.woken.is_set()
        assert await parked(postgres) == [("a", "retry_terminal", 1)]
    assert bank.seen == [2]


@pytest.mark.parametrize("verb", ["retry_key", "release_key", "skip_key"])
@pytest.mark.parametrize("where", ["here", "in a broker that is connected", "in a broker that is not"])
async def test_subscribers_are_woken_wherever_the_operator_is(postgres: PostgresBackend, where: str, verb: str) -> None:
    """What cannot be told after the commit is told in the transaction."""
    bank = Bank(postgres)
    operator = bank.broker if where == "here" else broker_on(postgres)
    await bank.publish(2, 3)
    async with started(bank.broker):
        await until_parked(postgres)
        await until(lambda: postgres.run(LISTENERS))
        bank.poison = None
        if where == "in a broker that is connected":
            await operator.connect()
        bank.woken.clear()
        reason = {"reason": "x"} if verb == "skip_key" else {}
        async with postgres.transaction() as session:
            assert await getattr(operator, verb)(queue="q", key="a", session=session, **reason)
        async with asyncio.timeout(20):
            await bank.woken.wait()
        await until_empty(postgres)
        await operator.stop()
    assert bank.seen[-1] == 3


async def test_a_session_is_needed(postgres: PostgresBackend) -> None:
    broker: OutboxBroker = broker_on(postgres)
    where: Any = {"queue": "q", "key": "a"}
    for verb in (
        *(broker.retry_key(**where), broker.release_key(**where), broker.park_key(**where, reason="x")),
        *(broker.skip_key(**where, reason="x"), broker.fetch_keys()),
    ):
        with pytest.raises(TypeError, match="session is the AsyncSession or AsyncConnection"):
            await verb
    async with postgres.transaction() as session:
        with pytest.raises(TypeError, match="queue is a str"):
            await broker.retry_key(queue=["q"], key="a", session=session)  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("run_loops", [False, True])
async def test_in_memory(postgres: PostgresBackend, run_loops: bool) -> None:
    bank = Bank(postgres)
    async with TestOutboxBroker(bank.broker, run_loops=run_loops) as broker:
        try:
            await broker.publish({"number": 2}, queue="q", key="a")
        except ValueError:
            assert not run_loops
        await broker.publish({"number": 3}, queue="q", key="a")
        keys = await until(lambda: broker.fetch_keys(state="parked"))
        assert [(key.key, key.waiting) for key in keys] == [("a", 1)]
        assert not await broker.park_key(queue="q", key="a", reason="x")
        assert await broker.release_key(queue="q", key="a")
        if run_loops:
            await until(lambda: bank.seen == [2, 2])
            await until(lambda: broker.fetch_keys(state="parked"))
        bank.poison = None
        assert await broker.skip_key(queue="q", key="a", reason="x") is not None
        assert len(broker.fake_client.dlq_rows) == 1
        if run_loops:
            await until(lambda: not broker.fake_client.rows)
        else:
            assert await broker.retry_key(queue="q", key="a")
            assert len(broker.fake_client.rows) == 1
