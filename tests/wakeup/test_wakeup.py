"""Subscribers are woken after the commit, here and in other processes, and by nothing else."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from faststream_outbox.embedded import Database
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.storage import Ack, Listening, MemoryStore, NewRow, OutboxRow, Outcome, PostgresStore
from faststream_outbox.wakeup.wakeup import Wakeup
from tests.backends import Backend, MemoryBackend, PostgresBackend
from tests.engine.pipelines import one_by_one
from tests.observers import LISTENERS, NotifiedQueues, Reports, Wakes


@asynccontextmanager
async def started(store: Backend | PostgresBackend, *, listen: bool = True) -> AsyncIterator[Wakeup]:
    reports = Reports()
    wakeup = Wakeup(store.store, reports)
    wakeup.start(listen=listen)
    try:
        async with asyncio.timeout(60):
            yield wakeup
    finally:
        await wakeup.stop()
    assert reports.events == []


async def publish(wakeup: Wakeup, backend: PostgresBackend, session: AsyncSession, *queues: str) -> None:
    for queue in queues:
        notify = not wakeup.defer(session, queue)
        await backend.store.insert(session, NewRow(queue, b""), notify=notify)


async def test_a_commit_wakes_the_subscribers_of_its_queue(postgres: PostgresBackend) -> None:
    mine, others = Wakes(), Wakes()
    async with started(postgres, listen=False) as wakeup:
        wakeup.subscribe(["q", "r"], mine)
        wakeup.subscribe(["x"], others)
        async with postgres.sessions() as session:
            await publish(wakeup, postgres, session, "q", "q", "q")
            assert mine.count == 0
            await session.commit()
            assert mine.count == 1, "directly, and once"
    assert others.count == 0


async def test_a_rollback_wakes_nobody(postgres: PostgresBackend) -> None:
    wakes = Wakes()
    async with started(postgres, listen=False) as wakeup:
        wakeup.subscribe(["q"], wakes)
        async with postgres.sessions() as session:
            await publish(wakeup, postgres, session, "q")
            await session.rollback()
    assert wakes.count == 0


async def test_who_has_unsubscribed_is_left_alone(postgres: PostgresBackend) -> None:
    gone, here = Wakes(), Wakes()
    async with started(postgres, listen=False) as wakeup:
        unsubscribe = wakeup.subscribe(["q"], gone)
        wakeup.subscribe(["q"], here)
        unsubscribe()
        unsubscribe()
        wakeup.announce(["q"])
    assert (gone.count, here.count) == (0, 1)


async def test_other_processes_are_told_once_per_queue(postgres: PostgresBackend) -> None:
    notified = NotifiedQueues()
    async with postgres.store.listen(notified):
        async with started(postgres, listen=False) as wakeup, postgres.transaction() as session:
            await publish(wakeup, postgres, session, *(f"q{n % 2}" for n in range(1000)))
            await postgres.store.notify(["before"])
            assert await notified.until("before") == ["before"]
        await postgres.store.notify(["end"])
        await notified.until("end")
    assert Counter(notified.queues) == {"before": 1, "q0": 1, "q1": 1, "end": 1}


async def test_subscribers_of_other_processes_wake(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    elsewhere = PostgresBackend(create_async_engine(outbox_postgres.url("asyncpg")))
    wakes = Wakes()
    async with started(elsewhere) as there, started(postgres, listen=False) as here:
        there.subscribe(["q"], wakes)
        await wakes.next()  # when it begins to hear
        async with postgres.transaction() as session:
            await publish(here, postgres, session, "q")
        await wakes.next()
        async with postgres.engine.begin() as connection:
            assert not here.defer(connection, "q")
            await postgres.store.insert(connection, NewRow("q", b""), notify=True)
        await wakes.next()
        await postgres.run("NOTIFY outbox_outbox")
        await wakes.next()
    await elsewhere.engine.dispose()


async def test_who_listens_notifies_on_that_connection_and_else_on_one_of_the_pool(postgres: PostgresBackend) -> None:
    class Lending(PostgresStore):
        deaf = False
        lent = 0

        async def notify(self, queues: Iterable[str]) -> None:
            self.lent += 1
            await super().notify(queues)

        def listen(self, on_queue: Callable[[str], None]) -> AbstractAsyncContextManager[Listening]:
            if self.deaf:
                raise ConnectionError("on purpose")
            return super().listen(on_queue)

    store, reports, notified = Lending(postgres.engine, postgres.outbox_table), Reports(), NotifiedQueues()
    wakeup = Wakeup(store, reports)
    async with asyncio.timeout(60), postgres.store.listen(notified):
        others = await postgres.run(LISTENERS)
        wakeup.start(listen=True)
        wakeup.announce(["early"])  # it need not listen yet
        await notified.until("early")
        wakeup.announce(["late"])
        await notified.until("late")
        assert store.lent == 0
        store.deaf = True
        [[pid]] = [each for each in await postgres.run(LISTENERS) if each not in others]
        await postgres.run("SELECT pg_terminate_backend(:pid)", pid=pid)
        wakeup.announce(["lost"])
        await notified.until("lost")
        assert store.lent == 1
        assert reports.named("notify_failed") == [], "one way is as good as the other"
    await wakeup.stop()


async def test_many_commits_share_their_notifications() -> None:
    class Counting(MemoryStore):
        sent: list[set[str]]

        async def notify(self, queues: Iterable[str]) -> None:
            self.sent.append(set(queues))

    store, wakes = Counting(), Wakes()
    store.sent = []
    wakeup = Wakeup(store, Reports())
    wakeup.subscribe(["q"], wakes)
    wakeup.start(listen=False)
    began = time.monotonic()
    wakeup.announce(["q"])
    while not store.sent:
        await asyncio.sleep(0)
    for n in range(20_000):
        wakeup.announce(["q", f"r{n % 7}"])
        await asyncio.sleep(0)
    await wakeup.stop()
    assert wakes.count == 20_001
    # One in ten milliseconds; a timer may come a little early.
    assert len(store.sent) <= (time.monotonic() - began) / 0.009 + 2
    assert store.sent[0] == {"q"}
    assert set().union(*store.sent) == {"q", *(f"r{n}" for n in range(7))}


async def test_stopping_announces_what_is_pending(postgres: PostgresBackend) -> None:
    notified = NotifiedQueues()
    async with postgres.store.listen(notified):
        async with started(postgres, listen=False) as wakeup:
            wakeup.announce(["first"])
            await notified.until("first")
            wakeup.announce(["second"])
            wakeup.announce(["third"])
        await notified.until("second")
        await notified.until("third")


async def test_it_can_be_started_again(postgres: PostgresBackend) -> None:
    wakeup, wakes, notified = Wakeup(postgres.store, Reports()), Wakes(), NotifiedQueues()
    wakeup.subscribe(["q"], wakes)
    async with postgres.store.listen(notified), asyncio.timeout(60):
        for queue in ("one", "two"):
            async with postgres.sessions() as session:
                assert not wakeup.defer(session, queue), "nobody would announce it"
            wakeup.start(listen=False)
            wakeup.start(listen=True)  # as a broker does, which connects first
            await wakes.next()
            assert wakeup.alive
            async with postgres.transaction() as session:
                await publish(wakeup, postgres, session, queue)
            await wakeup.stop()
            await notified.until(queue)


async def test_stopped_before_the_commit_it_does_not_break_it(postgres: PostgresBackend) -> None:
    wakeup = Wakeup(postgres.store, Reports())
    wakeup.start(listen=False)
    async with postgres.transaction() as session:
        await publish(wakeup, postgres, session, "q")
        await wakeup.stop()
    assert len(await postgres.rows()) == 1


async def test_commits_of_other_threads_wake(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    wakes, notified = Wakes(), NotifiedQueues()
    threads: list[int] = []

    def wake() -> None:
        threads.append(threading.get_ident())
        wakes()

    def work(wakeup: Wakeup) -> None:
        engine = create_engine(outbox_postgres.url("psycopg"))
        with Session(engine) as session, session.begin():
            postgres.store.insert_sync(session, NewRow("q", b""), notify=not wakeup.defer(session, "q"))
        engine.dispose()

    async with postgres.store.listen(notified), started(postgres, listen=False) as wakeup:
        wakeup.subscribe(["q"], wake)
        await asyncio.to_thread(work, wakeup)
        await wakes.next()
        await notified.until("q")
    assert threads == [threading.get_ident()]


async def test_what_cannot_be_sent_is_kept_and_sent_later(postgres: PostgresBackend) -> None:
    class Weak(PostgresStore):
        failures = 3

        async def notify(self, queues: Iterable[str]) -> None:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("on purpose")
            await super().notify(queues)

    notified, reports = NotifiedQueues(), Reports()
    wakeup = Wakeup(Weak(postgres.engine, postgres.outbox_table), reports)
    wakeup.start(listen=False)
    async with postgres.store.listen(notified):
        wakeup.announce(["a"])
        await reports.until("notify_failed")
        wakeup.announce(["b"])
        await notified.until("a")
        await notified.until("b")
    await wakeup.stop()
    assert len(reports.named("notify_failed")) == 2  # the first and the second time; the third is no news


async def test_a_store_that_does_not_answer_does_not_keep_it_from_stopping(postgres: PostgresBackend) -> None:
    class Silent(PostgresStore):
        async def notify(self, queues: Iterable[str]) -> None:
            del queues
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    asked.set()
                    await asyncio.wait_for(over.wait(), 60)
                    raise

    reports, asked, over = Reports(), asyncio.Event(), asyncio.Event()
    wakeup = Wakeup(Silent(postgres.engine, postgres.outbox_table), reports)
    wakeup.start(listen=False)
    wakeup.announce(["q"])
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await wakeup.stop()
        await asked.wait()
    [event] = reports.named("notify_failed")
    assert "polling" in event["message"]
    over.set()


async def test_in_memory_rows_wake_at_once() -> None:
    backend, wakes = MemoryBackend(), Wakes()
    async with started(backend) as wakeup:
        wakeup.subscribe(["q"], wakes)
        await wakes.next()
        assert not wakeup.defer(None, "q")
        await backend.store.insert(None, NewRow("q", b""), notify=True)
        await wakes.next()
        await backend.store.insert_many(None, [NewRow("q", b"")], notify=True)
        await wakes.next()


async def test_a_pipeline_that_hardly_polls_gets_its_rows(engine: AsyncEngine, outbox_postgres: Database) -> None:
    """Published here or in another process, through a session or a connection."""
    here, elsewhere = PostgresBackend(engine), PostgresBackend(create_async_engine(outbox_postgres.url("asyncpg")))
    await here.create()
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(row: OutboxRow) -> Outcome:
        handled.put_nowait(row.payload)
        return Ack()

    options = SubscriberOptions(min_fetch_interval=3600, max_fetch_interval=3600)
    async with started(here) as wakeup, started(elsewhere, listen=False) as other:
        pipeline = Pipeline(here.store, ["q"], one_by_one(handle), options=options)
        wakeup.subscribe(["q"], pipeline.wake)
        pipeline.start()
        for n in range(20):
            publisher, backend = ((wakeup, here), (other, elsewhere))[n % 2]
            row = NewRow("q", b"%d" % n)
            async with backend.sessions() as session, session.begin():
                source = session if n % 4 < 2 else await session.connection()
                await backend.store.insert(source, row, notify=not publisher.defer(source, "q"))
            assert await handled.get() == row.payload
        await pipeline.stop(10)
    await elsewhere.engine.dispose()
