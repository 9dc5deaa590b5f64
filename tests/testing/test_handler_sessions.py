"""Handlers that take an `OutboxSession`, in memory, with a session that the test gives them."""

from typing import Any
from unittest.mock import AsyncMock

import pytest
from fastapi import FastAPI
from faststream import Depends
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from faststream_outbox import ConstantRetry, NoRetry, OutboxBroker, OutboxRouter, TestOutboxBroker
from faststream_outbox.annotations import OutboxBatchMessage, OutboxSession
from faststream_outbox.fastapi import OutboxSession as FastAPISession
from faststream_outbox.testing import fake_session
from tests.backends import PostgresBackend
from tests.fastapi.applications import router_in, serving
from tests.faststream.environments import MemoryEnvironment
from tests.waiting import until

LATER = ConstantRetry(delay_seconds=3600)
BOTH_MODES = pytest.mark.parametrize("run_loops", [False, True], ids=["by default", "with loops"])


@pytest.fixture
def broker(memory: MemoryEnvironment) -> OutboxBroker:
    return memory.broker()


@BOTH_MODES
async def test_the_handler_and_its_dependencies_get_the_session_and_the_answer_is_captured(
    broker: OutboxBroker, *, run_loops: bool
) -> None:
    given, seen = fake_session(), list[Any]()

    def audit(session: OutboxSession) -> None:
        seen.append(session)

    @broker.publisher("receipts")
    @broker.subscriber("payments", dependencies=[Depends(audit)])
    async def book(cents: int, session: OutboxSession) -> int:
        session.add(cents)
        seen.append(session)
        return cents

    @broker.subscriber("receipts")
    async def print_receipt(cents: int) -> None: ...

    async with TestOutboxBroker(broker, handler_session=given, run_loops=run_loops):
        await broker.publish(100, queue="payments")
        await until(lambda: not broker.fake_client.rows)
        print_receipt.mock.assert_called_once_with(100)
    assert seen == [given, given]
    given.add.assert_called_once_with(100)
    given.commit.assert_not_called()
    given.close.assert_not_called()


async def test_any_object_will_do_as_a_session(broker: OutboxBroker) -> None:
    class Recording:
        def __init__(self) -> None:
            self.added: list[int] = []

        def add(self, cents: int) -> None:
            self.added.append(cents)

    @broker.subscriber("payments")
    async def book(cents: int, session: OutboxSession) -> None:
        session.add(cents)

    async with TestOutboxBroker(broker, handler_session=(given := Recording())):
        await broker.publish(100, queue="payments")
        assert broker.fake_client.rows == []
    assert given.added == [100]


@BOTH_MODES
async def test_what_is_written_is_flushed_and_the_test_commits_it(
    broker: OutboxBroker, postgres: PostgresBackend, *, run_loops: bool
) -> None:
    await postgres.run("CREATE TABLE effects (number int UNIQUE)")

    @broker.subscriber("payments", retry_strategy=LATER)
    async def book(cents: int, session: OutboxSession) -> None:
        assert session.in_transaction()
        await session.execute(text("INSERT INTO effects VALUES (:cents)"), {"cents": cents})

    async def effects() -> list[Any]:
        return [number for (number,) in await postgres.run("SELECT number FROM effects")]

    async with postgres.sessions() as session:
        async with TestOutboxBroker(broker, handler_session=session, run_loops=run_loops):
            await broker.publish(100, queue="payments")
            await until(lambda: not broker.fake_client.rows)
            assert await session.scalar(text("SELECT number FROM effects")) == 100
        assert await effects() == []
        await session.commit()
    assert await effects() == [100]


async def _commit(session: AsyncSession) -> None:
    await session.commit()


async def _rollback(session: AsyncSession) -> None:
    await session.rollback()


@pytest.mark.parametrize(
    ("wrong", "words"), [(_commit, "remove session.commit"), (_rollback, "was ended in the handler")]
)
async def test_a_handler_may_not_end_the_transaction(
    broker: OutboxBroker, postgres: PostgresBackend, wrong: Any, words: str
) -> None:
    @broker.subscriber("payments", retry_strategy=NoRetry())
    async def book(_cents: int, session: OutboxSession) -> None:
        await session.execute(text("SELECT 1"))
        await wrong(session)

    async with postgres.sessions() as session, TestOutboxBroker(broker, handler_session=session):
        with pytest.raises(RuntimeError, match=words):
            await broker.publish(100, queue="payments")
        [letter] = broker.fake_client.dlq_rows
        assert words in letter["last_exception"]
        await session.commit()  # the test may


async def test_an_error_of_the_last_flush_surfaces(broker: OutboxBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    session = AsyncSession()
    monkeypatch.setattr(session, "flush", AsyncMock(side_effect=IntegrityError("INSERT", None, Exception("twice"))))

    @broker.subscriber("payments", retry_strategy=LATER)
    async def book(cents: int, session: OutboxSession) -> None: ...

    async with TestOutboxBroker(broker, handler_session=session):
        with pytest.raises(IntegrityError):
            await broker.publish(100, queue="payments")
        [row] = broker.fake_client.rows
        assert row.attempts_count == 1


async def test_handlers_that_publish_to_each_other_share_the_session(broker: OutboxBroker) -> None:
    @broker.subscriber("orders")
    async def order(cents: int, session: OutboxSession) -> None:
        await broker.publish(cents, queue="payments", session=session)
        session.add("order")

    @broker.subscriber("payments")
    async def book(_cents: int, session: OutboxSession) -> None:
        session.add("payment")

    async with TestOutboxBroker(broker, handler_session=(given := fake_session())):
        await broker.publish(100, queue="orders")
        assert broker.fake_client.rows == []
    assert [call.args for call in given.add.call_args_list] == [("payment",), ("order",)]


async def test_a_failure_is_settled_and_leaves_the_session_to_the_test(broker: OutboxBroker) -> None:
    given = fake_session()

    @broker.publisher("receipts")
    @broker.subscriber("payments", retry_strategy=LATER)
    async def book(cents: int, session: OutboxSession) -> int:
        session.add(cents)
        raise ValueError(cents)

    async with TestOutboxBroker(broker, handler_session=given):
        with pytest.raises(ValueError, match="100"):
            await broker.publish(100, queue="payments")
        assert [(row.queue, row.attempts_count) for row in broker.fake_client.rows] == [("payments", 1)]
    given.rollback.assert_not_called()


@BOTH_MODES
@pytest.mark.parametrize("keys", [None, ["k"] * 3], ids=["without keys", "of one key"])
async def test_a_batch_has_one_session(broker: OutboxBroker, keys: list[str | None] | None, *, run_loops: bool) -> None:
    @broker.publisher("receipts")
    @broker.subscriber("payments", batch=True, max_wait_ms=30_000, max_records=3)
    async def book(amounts: list[int], session: OutboxSession) -> int:
        session.add(sum(amounts))
        return len(amounts)

    @broker.subscriber("receipts")
    async def print_receipt(count: int) -> None: ...

    async with TestOutboxBroker(broker, handler_session=(given := fake_session()), run_loops=run_loops):
        await broker.publish_batch(1, 2, 3, queue="payments", keys=keys)
        await until(lambda: not broker.fake_client.rows)
        print_receipt.mock.assert_called_once_with(3)
    given.add.assert_called_once_with(6)


async def test_single_verdicts_of_a_batch_with_a_session(broker: OutboxBroker) -> None:
    @broker.subscriber("payments", batch=True)
    async def book(_amounts: list[int], batch: OutboxBatchMessage, _session: OutboxSession) -> None:
        await batch.messages[1].reject()

    async with TestOutboxBroker(broker, handler_session=fake_session()):
        await broker.publish_batch(1, -1, 2, queue="payments")
        assert broker.fake_client.rows == []
        assert [letter["payload"] for letter in broker.fake_client.dlq_rows] == [b"-1"]


async def test_a_lost_lease_takes_the_whole_batch_back(broker: OutboxBroker) -> None:
    @broker.publisher("receipts")
    @broker.subscriber("payments", batch=True)
    async def book(_amounts: list[int], batch: OutboxBatchMessage, _session: OutboxSession) -> int:
        del broker.fake_client.store.rows[batch.messages[0].raw_message.id]
        return 1

    async with TestOutboxBroker(broker, handler_session=fake_session()):
        await broker.publish_batch(1, 2, queue="payments")
        [row] = broker.fake_client.rows
        assert (row.queue, row.payload, row.attempts_count) == ("payments", b"2", 0)


@pytest.mark.parametrize("options", [{"handler_session": fake_session()}, {"capture": True}], ids=["given", "captured"])
async def test_a_router_and_a_dependency_of_the_broker(memory: MemoryEnvironment, options: dict[str, Any]) -> None:
    async def audit(session: OutboxSession) -> None:
        session.add("audit")
        await session.flush()

    broker = memory.broker(dependencies=[Depends(audit)])
    router = OutboxRouter("shop.")
    payments, receipts = router.publisher("payments"), router.publisher("receipts")

    @receipts
    @router.subscriber("payments")
    async def book(cents: int) -> int:
        return cents

    broker.include_router(router)
    captured = "capture" in options
    async with TestOutboxBroker(broker, **options):
        await broker.publish(100, queue="shop.payments")
        (payments if captured else receipts).mock.assert_called_once_with(100)
        assert [row.queue for row in broker.fake_client.rows] == ["shop.payments" if captured else "shop.receipts"]


async def test_the_mock_of_a_publisher_leaves_the_session_to_the_test(memory: MemoryEnvironment) -> None:
    async def audit(session: OutboxSession) -> None:
        session.add_all([])

    broker = memory.broker(dependencies=[Depends(audit)])
    done = broker.publisher("done")
    async with AsyncSession() as given, TestOutboxBroker(broker, handler_session=given):
        await done.publish("a", session=fake_session())
        done.mock.assert_called_once_with("a")
        await given.commit()


async def test_without_a_session_the_error_names_both_ways(broker: OutboxBroker) -> None:
    @broker.subscriber("payments", retry_strategy=LATER)
    async def book(cents: int, session: OutboxSession) -> None:
        raise AssertionError(cents, session)

    async with TestOutboxBroker(broker):
        with pytest.raises(NotImplementedError, match=r"handler_session=(.|\n)*capture="):
            await broker.publish(100, queue="payments")


@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient` is deprecated")
@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous client", "TestClient"])
async def test_a_fastapi_application_and_its_handlers(memory: MemoryEnvironment, *, synchronous: bool) -> None:
    router, given = router_in(memory), fake_session()
    receipts = router.publisher("receipts")

    @receipts
    @router.subscriber("payments")
    async def book(cents: int, session: FastAPISession) -> int:
        session.add(cents)
        return cents

    @router.post("/payments")
    async def pay(cents: int) -> None:
        await router.broker.publish(cents, queue="payments", session=fake_session())

    app = FastAPI()
    app.include_router(router)
    async with TestOutboxBroker(router.broker, handler_session=given) as broker:
        if synchronous:
            from fastapi.testclient import TestClient  # noqa: PLC0415 - its import warns

            with TestClient(app) as blocking:
                response: Any = blocking.post("/payments", params={"cents": 100})
        else:
            async with serving(app) as client:
                response = await client.post("/payments", params={"cents": 100})
        assert response.status_code == 200
        given.add.assert_called_once_with(100)
        receipts.mock.assert_called_once_with(100)
        assert [row.queue for row in broker.fake_client.rows] == ["receipts"]


@pytest.mark.parametrize("wrong", [AsyncEngine, async_sessionmaker, Session])
async def test_what_is_no_asynchronous_session_is_refused(
    broker: OutboxBroker, postgres: PostgresBackend, wrong: Any
) -> None:
    given = {AsyncEngine: postgres.engine, async_sessionmaker: async_sessionmaker(), Session: Session()}[wrong]
    with pytest.raises(TypeError, match=f"not {wrong.__name__}"):
        TestOutboxBroker(broker, handler_session=given)


def test_a_real_database_has_sessions_of_its_own(broker: OutboxBroker) -> None:
    with pytest.raises(ValueError, match="leave handler_session out"):
        TestOutboxBroker(broker, handler_session=fake_session(), with_real=True)
