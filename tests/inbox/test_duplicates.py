"""A message is handled once, however often and however it comes."""

import asyncio

import pytest
from faststream import AckPolicy
from faststream.exceptions import AckMessage, NackMessage, RejectMessage

from faststream_outbox import TestOutboxBroker
from faststream_outbox.annotations import InboxSession, OutboxMessage
from faststream_outbox.envelope import (
    MESSAGE_ID,
    OUTBOX_ID,
    OUTBOX_KEY,
    OUTBOX_SEQUENCE,
    OUTBOX_SOURCE,
    row_identity,
)
from tests.broker.brokers import started
from tests.inbox.inbox_app import InboxApp
from tests.waiting import until, until_empty


async def test_a_duplicate_is_acked_and_not_handled(app: InboxApp) -> None:
    broker = app.broker()
    calls: list[str] = []

    @app.subscriber(broker, app.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await app.write(session, body)

    for body, message_id in (("first", "1"), ("first again", "1"), ("second", "2"), ("first once more", "1")):
        await app.send(broker, body, message_id=message_id)
    async with started(broker):
        await until_empty(app.postgres)
    assert sorted(calls) == sorted(await app.written()) == ["first", "second"]
    assert await app.seen() == [("billing", "1"), ("billing", "2")]
    assert await app.postgres.dead_letters() == []
    skipped = app.records.named("inbox_skipped")
    assert [(record.consumer, record.inbox_id) for record in skipped] == [("billing", "1")] * 2


async def test_two_brokers_on_one_outbox(app: InboxApp) -> None:
    """Two processes of one service, as it were."""
    brokers = [app.broker(), app.broker()]
    for broker in brokers:

        @app.subscriber(broker, app.inbox(), max_workers=4)
        async def handle(body: str, session: InboxSession) -> None:
            await app.write(session, body)

    for _ in range(3):
        for number in range(30):
            await app.send(brokers[0], str(number), message_id=str(number))
    async with started(brokers[0]), started(brokers[1]):
        await until_empty(app.postgres)
    assert sorted(await app.written(), key=int) == [str(number) for number in range(30)]


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("first_fails", [False, True])
async def test_of_two_at_the_same_time_one_waits_for_the_other(
    app: InboxApp, first_fails: bool, isolation: str
) -> None:
    broker = app.broker()
    inbox = app.inbox(engine=app.engine.execution_options(isolation_level=isolation))
    calls: list[str] = []
    entered, leave = asyncio.Event(), asyncio.Event()

    @app.subscriber(broker, inbox, max_workers=2, ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await app.write(session, body)
        if len(calls) == 1:
            entered.set()
            await leave.wait()
            if first_fails:
                raise ValueError(body)

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await entered.wait()
        await app.send(broker, "b", message_id="1")
        await app.waits_for_another()
        assert calls == ["a"], "the second one is not run before the first one has ended"
        leave.set()
        await until_empty(app.postgres)
    assert calls == (["a", "b"] if first_fails else ["a"])
    assert await app.written() == (["b"] if first_fails else ["a"])
    assert len(await app.postgres.dead_letters()) == first_fails
    assert await app.seen() == [("billing", "1")]


async def test_a_handler_that_is_cancelled_leaves_nothing(app: InboxApp) -> None:
    broker = app.broker(graceful_timeout=0.1)
    entered = asyncio.Event()

    @app.subscriber(broker, app.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)
        entered.set()
        await asyncio.Event().wait()

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await entered.wait()
    assert (await app.written(), await app.seen()) == ([], [])
    assert len(await app.postgres.rows()) == 1
    await until(
        lambda: app.postgres.one(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        ),
        lambda found: not found,
    )


async def test_a_handler_that_raises_leaves_nothing_and_is_tried_again(app: InboxApp) -> None:
    broker = app.broker()
    calls: list[str] = []

    @app.subscriber(broker, app.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await app.write(session, f"{body} {len(calls)}")
        if len(calls) < 3:
            assert await app.seen() == [], "no other transaction sees the record before the commit"
            raise ValueError(body)

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    assert calls == ["a"] * 3
    assert await app.written() == ["a 3"]
    assert await app.seen() == [("billing", "1")]


@pytest.mark.parametrize(
    ("raised", "handled"), [(AckMessage(), True), (NackMessage(delay=3600), False), (RejectMessage(), False)]
)
async def test_verdicts_by_exception(app: InboxApp, raised: Exception, handled: bool) -> None:
    broker = app.broker()
    done = asyncio.Event()

    @app.subscriber(broker, app.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)
        done.set()
        raise raised

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await done.wait()
    assert await app.written() == (["a"] if handled else [])
    assert len(await app.seen()) == handled
    assert len(await app.postgres.rows()) == isinstance(raised, NackMessage)


@pytest.mark.parametrize("verdict", ["ack", "nack", "reject"])
async def test_verdicts_by_hand(app: InboxApp, verdict: str) -> None:
    """And a duplicate is acked under MANUAL too, where FastStream acks nothing."""
    broker = app.broker()
    calls: list[str] = []

    @app.subscriber(broker, app.inbox(), ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, session: InboxSession, message: OutboxMessage) -> None:
        calls.append(body)
        await app.write(session, body)
        await (getattr(message, verdict)() if len(calls) == 1 else message.ack())

    await app.send(broker, "a", message_id="1")
    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    assert len(calls) == (1 if verdict == "ack" else 2)
    assert await app.written() == ["a"]
    assert len(await app.postgres.dead_letters()) == (verdict == "reject")


async def test_a_constraint_that_is_checked_at_commit_is_an_error_of_the_handler(app: InboxApp) -> None:
    await app.postgres.run("ALTER TABLE effects ADD UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
    await app.postgres.run("INSERT INTO effects (what) VALUES ('a')")
    broker = app.broker()

    @app.subscriber(broker, app.inbox(), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    assert await app.seen() == []
    [letter] = await app.postgres.dead_letters()
    assert "IntegrityError" in str(letter.last_exception)


async def test_a_duplicate_answers_nothing(app: InboxApp) -> None:
    """A handler's output would be written after the commit, so it goes through the session; a duplicate has none."""
    broker = app.broker()

    @app.subscriber(broker, app.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        await broker.publish(body, queue="next", session=session)

    await app.send(broker, "a", message_id="1")
    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until(app.postgres.rows, lambda found: [row.queue for row in found] == ["next"])
    assert len(await app.postgres.rows()) == 1


async def test_consumers_do_not_know_of_each_other(app: InboxApp) -> None:
    broker, inbox = app.broker(), app.inbox("billing")
    for consumer in ("billing", "audit"):
        mine = inbox if consumer == "billing" else inbox.named(consumer)

        @app.subscriber(broker, mine, consumer)
        async def handle(body: str, session: InboxSession) -> None:
            await app.write(session, body)

    for queue in ("billing", "audit"):
        for _ in range(2):
            await app.send(broker, queue, message_id="1", queue=queue)
    async with started(broker):
        await until_empty(app.postgres)
    assert sorted(await app.written()) == ["audit", "billing"]
    assert await app.seen() == [("audit", "1"), ("billing", "1")]


async def test_rows_of_an_outbox_are_known_by_their_ids_and_by_when_they_were_made(app: InboxApp) -> None:
    broker = app.broker()

    @app.subscriber(broker, app.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)

    ids = []
    for body in ("a", "b"):
        # As it is in a table that was emptied, or restored from a backup.
        await app.postgres.run("TRUNCATE outbox RESTART IDENTITY")
        await app.send(broker, body, message_id=None)
        [row] = await app.postgres.rows()
        ids.append(row_identity(row))
        assert row.id == 1
        async with started(broker):
            await until_empty(app.postgres)
    assert await app.written() == ["a", "b"]
    assert await app.seen() == [("billing", each) for each in sorted(ids)]


async def test_an_id_is_not_passed_on_with_the_other_headers(app: InboxApp) -> None:
    """Two answers to one message would be taken for one."""
    broker = app.broker()

    @broker.publisher("next")
    @broker.subscriber("q", propagate_inbound_headers=True)
    async def handle(body: str) -> str:
        return body

    headers = {OUTBOX_ID: "1", MESSAGE_ID: "2", OUTBOX_KEY: "3", OUTBOX_SEQUENCE: "4", OUTBOX_SOURCE: "5", "kind": "x"}
    async with app.postgres.transaction() as session:
        await broker.publish("a", queue="q", session=session, headers=headers)
    async with started(broker):
        await until(app.postgres.rows, lambda found: [row.queue for row in found] == ["next"])
    [row] = await app.postgres.rows()
    assert row.headers is not None
    assert row.headers.keys() & headers.keys() == {"kind"}


async def test_the_test_broker_has_an_inbox_too(app: InboxApp) -> None:
    broker = app.broker()

    @app.subscriber(broker, app.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)

    async with TestOutboxBroker(broker):
        for body in ("a", "b"):
            await broker.publish(body, queue="q", headers={OUTBOX_ID: "1"})
        assert broker.fake_client.rows == []
    assert await app.written() == ["a"]
