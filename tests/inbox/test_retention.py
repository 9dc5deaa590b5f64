"""Old records go, in small batches, beside the handlers and never in their way."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text

from faststream_outbox.annotations import InboxSession
from faststream_outbox.inbox import inbox as inbox_module
from faststream_outbox.inbox.consumer import Consumer
from tests.broker.brokers import started
from tests.inbox.inbox_app import Desk
from tests.waiting import until_empty


async def remember(desk: Desk, count: int, *, consumer: str = "desk", days: float = 0) -> None:
    await desk.postgres.run(
        "INSERT INTO outbox_inbox (consumer, message_id, seen_at) "
        "SELECT :consumer, 'old-' || n, now() - make_interval(secs => :age) FROM generate_series(1, :count) AS n",
        consumer=consumer,
        count=count,
        age=days * 86400,
    )


async def handle_one(desk: Desk, message_id: str, **options: Any) -> None:
    broker = desk.broker()

    @desk.subscriber(broker, desk.inbox(**options))
    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)

    await desk.send(broker, "a", message_id=message_id)
    async with started(broker):
        await until_empty(desk.postgres)


async def test_what_is_older_than_the_retention_goes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "_CLEAN_BATCH", 10)
    await remember(desk, 25, days=7.01)
    await remember(desk, 3, consumer="other", days=30)
    inbox = desk.inbox()
    await inbox.named("young").clean()
    assert len(await desk.seen()) == 28
    assert await inbox.clean() == 25
    assert await inbox.clean() == 0
    assert {consumer for consumer, _ in await desk.seen()} == {"other"}, "each consumer has a retention of its own"
    assert await desk.inbox("other", retention=timedelta(days=31)).clean() == 0


async def test_a_young_record_stays_and_an_old_one_is_forgotten(desk: Desk) -> None:
    await handle_one(desk, "1", retention=timedelta(days=2))
    await desk.age(days=1.9)
    await handle_one(desk, "1", retention=timedelta(days=2))
    assert await desk.written() == ["a"]
    await desk.age(days=0.2)
    assert await desk.inbox(retention=timedelta(days=2)).clean() == 1
    await handle_one(desk, "1", retention=timedelta(days=2))
    assert await desk.written() == ["a", "a"], "which is what the retention means"


async def test_it_is_done_after_a_commit_a_batch_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "_CLEAN_BATCH", 10)
    await remember(desk, 25, days=8)
    inbox, consumer = desk.inbox(), Consumer("desk")
    left = []
    for _ in range(4):
        await inbox.clean_when_due(consumer, None)
        left.append(len(await desk.seen()))
    assert left == [15, 5, 0, 0], "while there is more it is due again"
    await remember(desk, 1, days=8)
    await inbox.clean_when_due(consumer, None)
    assert len(await desk.seen()) == 1, "and then not before the interval is over"


@pytest.mark.parametrize(("options", "left"), [({}, 1), ({"clean_interval": None}, 6)])
async def test_handling_a_message_cleans(desk: Desk, options: dict[str, Any], left: int) -> None:
    await remember(desk, 5, days=8)
    await handle_one(desk, "1", **options)
    assert len(await desk.seen()) == left


async def test_a_record_that_is_in_use_is_left_and_not_waited_for(desk: Desk) -> None:
    await remember(desk, 2, days=8)
    async with desk.postgres.transaction() as session:
        await session.execute(text("SELECT 1 FROM outbox_inbox WHERE message_id = 'old-1' FOR UPDATE"))
        assert await desk.inbox().clean() == 1
    assert await desk.seen() == [("desk", "old-1")]


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_several_that_clean_at_a_time(desk: Desk, isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "_CLEAN_BATCH", 10)
    await remember(desk, 300, days=8)
    engine = desk.engine.execution_options(isolation_level=isolation)
    assert sum(await asyncio.gather(*(desk.inbox(engine=engine).clean() for _ in range(4)))) == 300
    assert await desk.seen() == []


async def test_a_failure_is_said_and_harms_no_message(desk: Desk) -> None:
    @event.listens_for(desk.engine.sync_engine, "before_cursor_execute")
    def refuse(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "SKIP LOCKED" in statement and "outbox_inbox" in statement:
            raise OSError("no")

    await handle_one(desk, "1")
    assert await desk.written() == ["a"]
    assert len(desk.records.named("inbox_clean_failed")) == 1
    assert await desk.postgres.dead_letters() == []


async def test_old_records_are_found_by_the_index(desk: Desk) -> None:
    await remember(desk, 20_000)
    await remember(desk, 20_000, consumer="other")
    await desk.postgres.run("ANALYZE outbox_inbox")
    plan = await desk.postgres.run(
        "EXPLAIN SELECT ctid FROM outbox_inbox WHERE consumer = 'desk' AND seen_at < now() - interval '7 days' "
        "ORDER BY seen_at LIMIT 1000 FOR UPDATE SKIP LOCKED"
    )
    assert "outbox_inbox_seen_idx" in "\n".join(str(line) for [line] in plan)
