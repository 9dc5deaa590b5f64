"""Tests of three kinds: in memory and at once, in memory with the real loops, and on a real Postgres."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from examples.testing.service import Base, Mailer, User, broker, get_mailer, register
from faststream_outbox import TestOutboxBroker
from faststream_outbox.embedded import Database
from faststream_outbox.testing import fake_session


class FakeMailer(Mailer):
    """Keeps the mail that it is given, and fails as often as a test asks."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.failures = 0
        self.worked = asyncio.Event()

    async def send(self, to: str, text: str) -> None:
        """Keep a mail, or fail."""
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the mail server does not answer")
        self.sent.append(f"{to}: {text}")
        self.worked.set()


@pytest.fixture
def mailer() -> Iterator[FakeMailer]:
    """Replace the mailer by a fake."""
    fake = FakeMailer()
    broker.provider.override(get_mailer, lambda: fake)
    yield fake
    broker.provider.clear()


async def test_who_registers_is_welcomed(mailer: FakeMailer) -> None:
    async with TestOutboxBroker(broker):
        await register(fake_session(), "ada@example.org")  # the handler has run when this returns
    assert mailer.sent == ["ada@example.org: welcome"]


@pytest.mark.usefixtures("mailer")
async def test_a_reminder_is_due_in_three_days() -> None:
    test_broker = TestOutboxBroker(broker)
    async with test_broker:
        await register(fake_session(), "ada@example.org")
        [reminder] = test_broker.fake_client.rows  # no subscriber reads reminders here
    assert (reminder.queue, reminder.timer_id) == ("reminders", "ada@example.org")
    assert timedelta(days=2, hours=23) < reminder.next_attempt_at - datetime.now(UTC) <= timedelta(days=3)


async def test_what_the_mailer_raises_surfaces(mailer: FakeMailer) -> None:
    mailer.failures = 1
    async with TestOutboxBroker(broker):
        with pytest.raises(ConnectionError):
            await register(fake_session(), "ada@example.org")


async def test_a_mail_is_tried_again(mailer: FakeMailer) -> None:
    mailer.failures = 2
    async with TestOutboxBroker(broker, run_loops=True):
        await register(fake_session(), "ada@example.org")
        await asyncio.wait_for(mailer.worked.wait(), 10)
    assert mailer.sent == ["ada@example.org: welcome"]


async def test_three_failures_are_the_end(mailer: FakeMailer) -> None:
    mailer.failures = 3
    test_broker = TestOutboxBroker(broker, run_loops=True)
    async with test_broker:
        await register(fake_session(), "ada@example.org")
        async with asyncio.timeout(10):
            while not test_broker.fake_client.dlq_rows:
                await asyncio.sleep(0.01)
    assert mailer.sent == []


@pytest.fixture
async def pg_engine(outbox_postgres: Database) -> AsyncIterator[AsyncEngine]:
    """Give a fresh database with the tables; an engine per test, because its connections belong to one event loop."""
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield engine
    await engine.dispose()


async def test_a_rollback_welcomes_nobody(pg_engine: AsyncEngine) -> None:
    async with AsyncSession(pg_engine) as session:
        await register(session, "ada@example.org")
        await session.flush()
        await session.rollback()
        await register(session, "grace@example.org")
        await session.commit()
        assert (await session.execute(select(func.count()).select_from(User))).scalar_one() == 1
        [row] = await broker.fetch_unprocessed(session=session)
    assert row.payload == b"grace@example.org"


async def test_the_service_on_a_real_database(pg_engine: AsyncEngine, mailer: FakeMailer) -> None:
    mailer.failures = 2
    # The broker of the service with all that was declared on it, such as the retry strategy, on the engine of the test.
    async with TestOutboxBroker(broker, with_real=True, engine=pg_engine), asyncio.timeout(10):
        async with AsyncSession(pg_engine) as session, session.begin():
            await register(session, "ada@example.org")
        await mailer.worked.wait()
        queues = ["welcome"]
        while queues == ["welcome"]:  # its outcome is not written yet
            async with AsyncSession(pg_engine) as session:
                queues = [row.queue for row in await broker.fetch_unprocessed(session=session)]
    assert mailer.sent == ["ada@example.org: welcome"]
    assert queues == ["reminders"]
