"""A NATS whose account is full, and users with few rights."""

from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from faststream.nats import NatsBroker

from faststream_outbox.relay import Relay, by_header
from faststream_outbox.relay.targets.base import Target
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.servers.nats import NatsWithAccount
from tests.servers.plugin import Servers
from tests.waiting import until, until_empty


@pytest.fixture
async def server(servers: Servers, request: pytest.FixtureRequest) -> NatsWithAccount:
    return await servers.up(NatsWithAccount, request)


@pytest.fixture
async def admin(server: NatsWithAccount) -> AsyncIterator[Any]:
    client = await nats.connect(server.url_of("admin"))
    yield client
    for name in ("orders", "secrets"):
        try:
            await client.jetstream().delete_stream(name)
        except nats.js.errors.NotFoundError:
            continue
    await client.close()


@pytest.mark.parametrize("destination", ["core:forbidden.X", "forbidden.y"], ids=["core", "JetStream"])
async def test_what_nats_does_not_allow_is_refused_and_not_lost(
    postgres: PostgresBackend, server: NatsWithAccount, admin: Any, destination: str
) -> None:
    """The server drops such a message, answers the next ping, and says so beside it."""
    await admin.jetstream().add_stream(name="secrets", subjects=["forbidden.y"])
    await admin.jetstream().add_stream(name="orders", subjects=["orders"])
    records = Records()
    broker = broker_on(postgres, records)
    async with postgres.transaction() as session:
        for number in range(12):
            key = ("a", None)[number % 2]
            await broker.publish(b"%d" % number, queue="forbidden", key=key, session=session)
            await broker.publish(b"%d" % number, queue="allowed", key=key, session=session)
    to = NatsBroker(server.url_of("relay"), logger=None)
    async with Relay(broker, to=to, routes={"forbidden": destination, "allowed": "orders"}):
        await until_empty(postgres)
    dead = await postgres.dead_letters()
    assert sorted(int(row.payload) for row in dead) == list(range(12))
    assert {(row.queue, row.failure_reason) for row in dead} == {("forbidden", "rejected")}
    assert "does not allow this user to publish" in str(dead[0].last_exception)
    assert (await admin.jetstream().stream_info("orders")).state.messages == 12
    assert records.named("relay_paused") == records.named("destination_paused") == []


# The server writes these in its report as Go quotes a text, and the client puts that in lower case.
QUOTED_SUBJECTS = [
    'forbidden."x"',
    'forbidden."',
    "forbidden.'",
    "forbidden.back\\slash",
    "forbidden.\\u00e9",
    "forbidden.\u00a0",
    "forbidden.\u200bB",
    "forbidden.\u0391\u03a3\u200bX",
    "forbidden.\U000e0001",
    "forbidden.\x01",
    "forbidden.\x07\x08\x0b\x0c",
    "forbidden.\x7f",
    "forbidden.\u0130\u00c9\u1e9e",
    "forbidden." + "\x01" * 3_800,
]


async def test_a_forbidden_subject_that_the_server_quotes_is_refused(
    postgres: PostgresBackend, server: NatsWithAccount, admin: Any
) -> None:
    await admin.jetstream().add_stream(name="secrets", subjects=["forbidden.>"])
    broker = broker_on(postgres)
    destinations = [*QUOTED_SUBJECTS, *(f"core:{subject}" for subject in QUOTED_SUBJECTS)]
    async with postgres.transaction() as session:
        for number, to in enumerate(destinations):
            for key in (f"k{number}", None):
                await broker.publish(b"%d" % number, queue="q", key=key, headers={"to": to}, session=session)
    async with Relay(broker, to=NatsBroker(server.url_of("relay"), logger=None), routes={"q": by_header("to")}):
        await until_empty(postgres)
    dead = await postgres.dead_letters()
    assert sorted(int(row.payload) for row in dead) == sorted([*range(len(destinations))] * 2)
    assert {row.failure_reason for row in dead} == {"rejected"}


async def test_a_message_that_the_server_reports_under_another_subject_waits(
    postgres: PostgresBackend, server: NatsWithAccount, admin: Any
) -> None:
    """A mapping of the account leads to a subject that the user may not publish to."""
    await admin.jetstream().add_stream(name="orders", subjects=["orders"])
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        for key in ("a", None):
            await broker.publish(b"1", queue="mapped", key=key, session=session)
            await broker.publish(b"1", queue="allowed", key=key, session=session)
    routes = {"mapped": "core:mapped", "allowed": "orders"}
    async with Relay(broker, to=NatsBroker(server.url_of("relay"), logger=None), routes=routes) as relay:
        await until(postgres.rows, lambda rows: [row.queue for row in rows] == ["mapped"] * 2)
        await until(lambda: "core:mapped" in relay.paused_destinations)
        assert "NATS has dropped a message" in str(relay.paused_destinations["core:mapped"])
    assert len(await postgres.rows()) == 2
    assert await postgres.dead_letters() == []


async def test_a_user_that_may_only_publish_to_its_subjects_reads_what_to_grant(
    postgres: PostgresBackend, server: NatsWithAccount, admin: Any
) -> None:
    """It cannot be known whether there is a stream, so the rows wait."""
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        for key in ("a", None):
            await broker.publish(b"1", queue="q", key=key, session=session)
    async with Relay(broker, to=NatsBroker(server.url_of("narrow"), logger=None), routes={"q": "shop.none"}) as relay:
        await until(lambda: "shop.none" in relay.paused_destinations)
        reason = str(relay.pause_reason)
        assert "No JetStream stream confirms 'shop.none'" in reason
        assert "Let the user publish to '$JS.API.STREAM.NAMES'" in reason
        [check] = await relay.check_destinations()
        assert not check.found
        assert "'shop.none' cannot be checked" in check.text
        assert "Let the user publish to '$JS.API.STREAM.NAMES'" in check.text
        await admin.jetstream().add_stream(name="orders", subjects=["shop.none"])
        await until_empty(postgres)
    assert await postgres.dead_letters() == []


async def test_a_user_that_receives_no_answers_reads_what_to_grant(
    postgres: PostgresBackend, server: NatsWithAccount, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "confirm_timeout", 4.0)
    await admin.jetstream().add_stream(name="orders", subjects=["orders"])
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        await broker.publish(b"1", queue="q", session=session)
    async with Relay(broker, to=NatsBroker(server.url_of("deaf"), logger=None), routes={"q": "orders"}) as relay:
        await until(lambda: "orders" in relay.paused_destinations)
        assert "Is the user allowed to subscribe to '_INBOX.>'" in str(relay.pause_reason)
    assert await postgres.dead_letters() == []


async def test_a_key_that_would_arrive_as_another_one_is_refused(
    postgres: PostgresBackend, server: NatsWithAccount, admin: Any
) -> None:
    """NATS would make one key of all of them, and a consumer that compares sequence numbers would skip rows."""
    jetstream = admin.jetstream()
    await jetstream.add_stream(name="orders", subjects=["orders"])
    broker = broker_on(postgres)
    keys = ["a b", " a b", "a b\u2003", "a\nb", "a\rb", "a b\n"]
    async with postgres.transaction() as session:
        for key in keys:
            await broker.publish(b"core", queue="core", key=key, session=session)
            await broker.publish(b"stream", queue="stream", key=key, session=session)
    routes = {"core": "core:prices", "stream": "orders"}
    async with Relay(broker, to=NatsBroker(server.url_of("relay"), logger=None), routes=routes):
        await until_empty(postgres)
    dead = await postgres.dead_letters()
    assert sorted(str(row.entity_key) for row in dead) == sorted(keys[1:] * 2)
    assert "would arrive changed in the header outbox_key" in str(dead[0].last_exception)
    assert (await jetstream.get_last_msg("orders", "orders")).headers["outbox_key"] == "a b"
    assert (await jetstream.stream_info("orders")).state.messages == 1


async def test_rows_wait_while_the_account_is_full(
    postgres: PostgresBackend, server: NatsWithAccount, admin: Any
) -> None:
    await admin.jetstream().add_stream(name="orders", subjects=["orders"])
    broker = broker_on(postgres)
    bodies = [b"%d" % number + b"." * (server.space // 20) for number in range(30)]
    async with postgres.transaction() as session:
        await broker.publish_batch(
            *bodies, queue="q", keys=["k" if n % 2 else None for n in range(30)], session=session
        )
    async with Relay(broker, to=NatsBroker(server.url_of("relay"), logger=None), routes={"q": "orders"}) as relay:
        await until(lambda: "orders" in relay.paused_destinations)
        assert "resource limits exceeded" in str(relay.pause_reason)

        async def rows_after_making_room() -> list[Any]:
            await admin.jetstream().purge_stream("orders")
            return await postgres.rows()

        await until(rows_after_making_room, lambda rows: not rows)
    assert await postgres.dead_letters() == []
    assert (await admin.jetstream().stream_info("orders")).state.last_seq == len(bodies)
