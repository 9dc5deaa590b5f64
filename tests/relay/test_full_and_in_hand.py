"""What a full destination keeps in hand does not stop the rows of others: suspects, large rows, refused rows."""

from typing import Any

import pytest

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay, Route, by_header, destinations
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.test_full_destinations import Full
from tests.waiting import until, until_empty, until_rows

ROUTES: dict[str, Route] = {"good": "good", "full": "full", "mixed": by_header("where")}
QUICK: dict[str, Any] = {"min_fetch_interval": 0.02, "max_fetch_interval": 0.2}


async def publish(broker: OutboxBroker, postgres: PostgresBackend, *rows: tuple[str, bytes, str | None]) -> None:
    async with postgres.transaction() as session:
        for queue, body, key in rows:
            await broker.publish(body, queue=queue, key=key, session=session)


async def test_a_suspect_of_a_full_destination_stops_no_other(postgres: PostgresBackend) -> None:
    broker, target = broker_on(postgres), Full("full")
    await publish(broker, postgres, ("full", b"suspect", None))
    await postgres.make_suspects("full", limit=1)
    async with Relay(broker, to=target, routes=ROUTES, **QUICK) as relay:
        await until(lambda: relay.paused_destinations)
        await publish(broker, postgres, ("good", b"1", None))
        await until(lambda: target.sent == [b"1"], seconds=10)
        target.full.clear()
        await until_empty(postgres, seconds=20)
    assert target.sent == [b"1", b"suspect"]


@pytest.mark.parametrize("key", ["k", None], ids=["with a key", "without a key"])
async def test_a_suspect_is_sent_while_another_destination_is_full(postgres: PostgresBackend, key: str | None) -> None:
    broker, target = broker_on(postgres), Full("full")
    await publish(broker, postgres, ("good", b"suspect", None))
    await postgres.make_suspects("good", limit=1)
    await publish(broker, postgres, ("full", b"waits", key))
    async with Relay(broker, to=target, routes=ROUTES, **QUICK) as relay:
        await until(lambda: relay.paused_destinations)
        await until(lambda: target.sent == [b"suspect"], seconds=20)
        target.full.clear()
        await until_empty(postgres, seconds=20)


@pytest.mark.parametrize("key", ["k", None], ids=["with a key", "without a key"])
async def test_large_rows_of_full_destinations_stop_no_other(postgres: PostgresBackend, key: str | None) -> None:
    full = [f"full{n}" for n in range(9)]
    broker, target = broker_on(postgres), Full(*full)
    async with postgres.transaction() as session:
        for number, where in enumerate(full):
            name = None if key is None else f"{key}{number}"
            await broker.publish(bytes(8 * 2**20), queue="mixed", key=name, headers={"where": where}, session=session)
    async with Relay(broker, to=target, routes=ROUTES, **QUICK) as relay:
        await until(lambda: len(relay.paused_destinations) >= 8)
        await publish(broker, postgres, ("good", b"1", None), ("good", b"2", "a"))
        await until(lambda: sorted(target.sent) == [b"1", b"2"], seconds=15)
        target.full.clear()
        await until_empty(postgres, seconds=60)


async def test_a_refused_row_is_dead_while_those_of_its_call_wait(postgres: PostgresBackend) -> None:
    broker, target = broker_on(postgres), Full("full")
    async with postgres.transaction() as session:
        await broker.publish(b"waits", queue="mixed", headers={"where": "full"}, session=session)
        await broker.publish(b"refused", queue="mixed", session=session)
    async with Relay(broker, to=target, routes=ROUTES, **QUICK) as relay:
        await until(lambda: relay.paused_destinations)
        await until_rows(postgres, 1, seconds=10)
        assert [letter.payload for letter in await postgres.dead_letters()] == [b"refused"]


async def test_a_pause_ends_when_its_rows_are_gone(postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destinations, "_FORGET_AFTER", 0.5)
    monkeypatch.setattr(destinations, "_FORGET_EVERY", 0.1)
    records = Records()
    broker, target = broker_on(postgres, records), Full("full")
    await publish(broker, postgres, ("full", b"1", None))
    async with Relay(broker, to=target, routes=ROUTES, lease_ttl_seconds=3, **QUICK) as relay:
        await until(lambda: relay.paused)
        await postgres.one("DELETE FROM outbox RETURNING id")
        await until(lambda: not relay.paused)
        assert len(records.named("destination_resumed")) == 1
        target.full.clear()
        await publish(broker, postgres, ("full", b"2", None))
        await until_empty(postgres)
    assert target.sent == [b"2"]
