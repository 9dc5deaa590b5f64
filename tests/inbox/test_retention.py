"""Old records go, in small batches, beside the handlers and never in their way."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text

from faststream_outbox.annotations import InboxSession
from faststream_outbox.inbox import records
from faststream_outbox.inbox.consumer import Consumer
from faststream_outbox.storage.postgres.inbox import InboxStore
from tests.broker.brokers import started
from tests.inbox.inbox_app import InboxApp
from tests.waiting import until_empty


async def remember(app: InboxApp, count: int, *, consumer: str = "billing", days: float = 0) -> None:
    await app.postgres.run(
        "INSERT INTO outbox_inbox (consumer, message_id, seen_at) "
        "SELECT :consumer, 'old-' || n, now() - make_interval(secs => :age) FROM generate_series(1, :count) AS n",
        consumer=consumer,
        count=count,
        age=days * 86400,
    )


async def handle_one(app: InboxApp, message_id: str, **options: Any) -> None:
    broker = app.broker()

    @app.subscriber(broker, app.inbox(**options))
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)

    await app.send(broker, "a", message_id=message_id)
    async with started(broker):
        await until_empty(app.postgres)


async def test_what_is_older_than_the_retention_goes(app: InboxApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_CLEAN_BATCH", 10)
    await remember(app, 25, days=7.01)
    await remember(app, 3, consumer="other", days=30)
    inbox = app.inbox()
    await inbox.named("young").clean()
    assert len(await app.seen()) == 28
    assert await inbox.clean() == 25
    assert await inbox.clean() == 0
    assert {consumer for consumer, _ in await app.seen()} == {"other"}, "each consumer has a retention of its own"
    assert await app.inbox("other", retention=timedelta(days=31)).clean() == 0


async def test_a_young_record_stays_and_an_old_one_is_forgotten(app: InboxApp) -> None:
    await handle_one(app, "1", retention=timedelta(days=2))
    await app.age(days=1.9)
    await handle_one(app, "1", retention=timedelta(days=2))
    assert await app.written() == ["a"]
    await app.age(days=0.2)
    assert await app.inbox(retention=timedelta(days=2)).clean() == 1
    await handle_one(app, "1", retention=timedelta(days=2))
    assert await app.written() == ["a", "a"], "which is what the retention means"


async def test_it_is_done_after_a_commit_a_batch_at_a_time(app: InboxApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_CLEAN_BATCH", 10)
    await remember(app, 25, days=8)
    consumer, store = Consumer("billing"), InboxStore(app.engine, app.inbox_table)
    options = {"retention": timedelta(days=7), "clean_interval": timedelta(minutes=10)}
    inbox = records.InboxRecords(store, get_message_id=None, **options)
    left = []
    for _ in range(4):
        await inbox.clean_when_due(consumer, None)
        left.append(len(await app.seen()))
    assert left == [15, 5, 0, 0], "while there is more it is due again"
    await remember(app, 1, days=8)
    await inbox.clean_when_due(consumer, None)
    assert len(await app.seen()) == 1, "and then not before the interval is over"


@pytest.mark.parametrize(("options", "left"), [({}, 1), ({"clean_interval": None}, 6)])
async def test_handling_a_message_cleans(app: InboxApp, options: dict[str, Any], left: int) -> None:
    await remember(app, 5, days=8)
    await handle_one(app, "1", **options)
    assert len(await app.seen()) == left


async def test_a_record_that_is_in_use_is_left_and_not_waited_for(app: InboxApp) -> None:
    await remember(app, 2, days=8)
    async with app.postgres.transaction() as session:
        await session.execute(text("SELECT 1 FROM outbox_inbox WHERE message_id = 'old-1' FOR UPDATE"))
        assert await app.inbox().clean() == 1
    assert await app.seen() == [("billing", "old-1")]


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_several_that_clean_at_a_time(app: InboxApp, isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_CLEAN_BATCH", 10)
    await remember(app, 300, days=8)
    engine = app.engine.execution_options(isolation_level=isolation)
    assert sum(await asyncio.gather(*(app.inbox(engine=engine).clean() for _ in range(4)))) == 300
    assert await app.seen() == []


async def test_a_failure_is_said_and_harms_no_message(app: InboxApp) -> None:
    @event.listens_for(app.engine.sync_engine, "before_cursor_execute")
    def refuse(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "SKIP LOCKED" in statement and "outbox_inbox" in statement:
            raise OSError("no")

    await handle_one(app, "1")
    assert await app.written() == ["a"]
    assert len(app.records.named("inbox_clean_failed")) == 1
    assert await app.postgres.dead_letters() == []


async def test_old_records_are_found_by_the_index(app: InboxApp) -> None:
    await remember(app, 20_000)
    await remember(app, 20_000, consumer="other")
    await app.postgres.run("ANALYZE outbox_inbox")
    plan = await app.postgres.run(
        "EXPLAIN SELECT ctid FROM outbox_inbox WHERE consumer = 'billing' AND seen_at < now() - interval '7 days' "
        "ORDER BY seen_at LIMIT 1000 FOR UPDATE SKIP LOCKED"
    )
    assert "outbox_inbox_seen_idx" in "\n".join(str(line) for [line] in plan)
