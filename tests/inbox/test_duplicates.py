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
from tests.inbox.inbox_app import Desk
from tests.waiting import until, until_empty


async def test_a_duplicate_is_acked_and_not_handled(desk: Desk) -> None:
    broker = desk.broker()
    calls: list[str] = []

    @desk.subscriber(broker, desk.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await desk.write(session, body)

    for body, message_id in (("first", "1"), ("first again", "1"), ("second", "2"), ("first once more", "1")):
        await desk.send(broker, body, message_id=message_id)
    async with started(broker):
        await until_empty(desk.postgres)
    assert sorted(calls) == sorted(await desk.written()) == ["first", "second"]
    assert await desk.seen() == [("desk", "1"), ("desk", "2")]
    assert await desk.postgres.dead_letters() == []
    skipped = desk.records.named("inbox_skipped")
    assert [(record.consumer, record.inbox_id) for record in skipped] == [("desk", "1")] * 2


async def test_two_brokers_on_one_outbox(desk: Desk) -> None:
    """Two processes of one service, as it were."""
    brokers = [desk.broker(), desk.broker()]
    for broker in brokers:

        @desk.subscriber(broker, desk.inbox(), max_workers=4)
        async def handle(body: str, session: InboxSession) -> None:
            await desk.write(session, body)

    for _ in range(3):
        for number in range(30):
            await desk.send(brokers[0], str(number), message_id=str(number))
    async with started(brokers[0]), started(brokers[1]):
        await until_empty(desk.postgres)
    assert sorted(await desk.written(), key=int) == [str(number) for number in range(30)]


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("first_fails", [False, True])
async def test_of_two_at_the_same_time_one_waits_for_the_other(desk: Desk, first_fails: bool, isolation: str) -> None:
    broker = desk.broker()
    inbox = desk.inbox(engine=desk.engine.execution_options(isolation_level=isolation))
    calls: list[str] = []
    entered, leave = asyncio.Event(), asyncio.Event()

    @desk.subscriber(broker, inbox, max_workers=2, ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await desk.write(session, body)
        if len(calls) == 1:
            entered.set()
            await leave.wait()
            if first_fails:
                raise ValueError(body)

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await entered.wait()
        await desk.send(broker, "b", message_id="1")
        await desk.waits_for_another()
        assert calls == ["a"], "the second one is not run while nobody knows how the first one ends"
        leave.set()
        await until_empty(desk.postgres)
    assert calls == (["a", "b"] if first_fails else ["a"])
    assert await desk.written() == (["b"] if first_fails else ["a"])
    assert len(await desk.postgres.dead_letters()) == first_fails
    assert await desk.seen() == [("desk", "1")]


async def test_a_handler_that_is_cancelled_leaves_nothing(desk: Desk) -> None:
    broker = desk.broker(graceful_timeout=0.1)
    entered = asyncio.Event()

    @desk.subscriber(broker, desk.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)
        entered.set()
        await asyncio.Event().wait()

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await entered.wait()
    assert (await desk.written(), await desk.seen()) == ([], [])
    assert len(await desk.postgres.rows()) == 1
    await until(
        lambda: desk.postgres.one(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        ),
        lambda found: not found,
    )


async def test_a_handler_that_raises_leaves_nothing_and_is_tried_again(desk: Desk) -> None:
    broker = desk.broker()
    calls: list[str] = []

    @desk.subscriber(broker, desk.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await desk.write(session, f"{body} {len(calls)}")
        if len(calls) < 3:
            assert await desk.seen() == [], "nobody sees the record before the commit"
            raise ValueError(body)

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    assert calls == ["a"] * 3
    assert await desk.written() == ["a 3"]
    assert await desk.seen() == [("desk", "1")]


@pytest.mark.parametrize(
    ("raised", "handled"), [(AckMessage(), True), (NackMessage(delay=3600), False), (RejectMessage(), False)]
)
async def test_verdicts_by_exception(desk: Desk, raised: Exception, handled: bool) -> None:
    broker = desk.broker()
    done = asyncio.Event()

    @desk.subscriber(broker, desk.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)
        done.set()
        raise raised

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await done.wait()
    assert await desk.written() == (["a"] if handled else [])
    assert len(await desk.seen()) == handled
    assert len(await desk.postgres.rows()) == isinstance(raised, NackMessage)


@pytest.mark.parametrize("verdict", ["ack", "nack", "reject"])
async def test_verdicts_by_hand(desk: Desk, verdict: str) -> None:
    """And a duplicate is acked under MANUAL too, where FastStream acks nothing."""
    broker = desk.broker()
    calls: list[str] = []

    @desk.subscriber(broker, desk.inbox(), ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, session: InboxSession, message: OutboxMessage) -> None:
        calls.append(body)
        await desk.write(session, body)
        await (getattr(message, verdict)() if len(calls) == 1 else message.ack())

    await desk.send(broker, "a", message_id="1")
    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    assert len(calls) == (1 if verdict == "ack" else 2)
    assert await desk.written() == ["a"]
    assert len(await desk.postgres.dead_letters()) == (verdict == "reject")


async def test_a_constraint_that_is_checked_at_commit_is_an_error_of_the_handler(desk: Desk) -> None:
    await desk.postgres.run("ALTER TABLE effects ADD UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
    await desk.postgres.run("INSERT INTO effects (what) VALUES ('a')")
    broker = desk.broker()

    @desk.subscriber(broker, desk.inbox(), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    assert await desk.seen() == []
    [letter] = await desk.postgres.dead_letters()
    assert "IntegrityError" in str(letter.last_exception)


async def test_a_duplicate_answers_nothing(desk: Desk) -> None:
    """A handler's output would be written after the commit, so it goes through the session; a duplicate has none."""
    broker = desk.broker()

    @desk.subscriber(broker, desk.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        await broker.publish(body, queue="next", session=session)

    await desk.send(broker, "a", message_id="1")
    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until(desk.postgres.rows, lambda found: [row.queue for row in found] == ["next"])
    assert len(await desk.postgres.rows()) == 1


async def test_consumers_do_not_know_of_each_other(desk: Desk) -> None:
    broker, inbox = desk.broker(), desk.inbox("billing")
    for consumer in ("billing", "audit"):
        mine = inbox if consumer == "billing" else inbox.named(consumer)

        @desk.subscriber(broker, mine, consumer)
        async def handle(body: str, session: InboxSession) -> None:
            await desk.write(session, body)

    for queue in ("billing", "audit"):
        for _ in range(2):
            await desk.send(broker, queue, message_id="1", queue=queue)
    async with started(broker):
        await until_empty(desk.postgres)
    assert sorted(await desk.written()) == ["audit", "billing"]
    assert await desk.seen() == [("audit", "1"), ("billing", "1")]


async def test_rows_of_an_outbox_are_known_by_their_ids_and_by_when_they_were_made(desk: Desk) -> None:
    broker = desk.broker()

    @desk.subscriber(broker, desk.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)

    ids = []
    for body in ("a", "b"):
        # As it is in a table that was emptied, or restored from a backup.
        await desk.postgres.run("TRUNCATE outbox RESTART IDENTITY")
        await desk.send(broker, body, message_id=None)
        [row] = await desk.postgres.rows()
        ids.append(row_identity(row))
        assert row.id == 1
        async with started(broker):
            await until_empty(desk.postgres)
    assert await desk.written() == ["a", "b"]
    assert await desk.seen() == [("desk", each) for each in sorted(ids)]


async def test_an_id_is_not_passed_on_with_the_other_headers(desk: Desk) -> None:
    """Two answers to one message would be taken for one."""
    broker = desk.broker()

    @broker.publisher("next")
    @broker.subscriber("q", propagate_inbound_headers=True)
    async def handle(body: str) -> str:
        return body

    headers = {OUTBOX_ID: "1", MESSAGE_ID: "2", OUTBOX_KEY: "3", OUTBOX_SEQUENCE: "4", OUTBOX_SOURCE: "5", "kind": "x"}
    async with desk.postgres.transaction() as session:
        await broker.publish("a", queue="q", session=session, headers=headers)
    async with started(broker):
        await until(desk.postgres.rows, lambda found: [row.queue for row in found] == ["next"])
    [row] = await desk.postgres.rows()
    assert row.headers is not None
    assert row.headers.keys() & headers.keys() == {"kind"}


async def test_the_test_broker_has_an_inbox_too(desk: Desk) -> None:
    broker = desk.broker()

    @desk.subscriber(broker, desk.inbox())
    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)

    async with TestOutboxBroker(broker):
        for body in ("a", "b"):
            await broker.publish(body, queue="q", headers={OUTBOX_ID: "1"})
        assert broker.fake_client.rows == []
    assert await desk.written() == ["a"]
