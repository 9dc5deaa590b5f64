"""A destination that answers nothing waits by itself, however many rows are in hand for it."""

from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest

from faststream_outbox.relay import Relay
from faststream_outbox.relay.targets.base import Target
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import Endpoint, NatsStream
from tests.waiting import until

# Of these, sixteen are on their way at first.
COUNT, SIZE = 200, 2**16


@pytest.fixture
async def silent_stream(endpoint: Endpoint) -> AsyncIterator[str]:
    """Make a stream that stores messages and confirms none."""
    name = f"{endpoint.name}-silent"
    client = await nats.connect(endpoint.running.url)
    options: dict[str, Any] = {"name": name, "subjects": [name], "no_ack": True}
    await client.jetstream().add_stream(**options)
    yield name
    await client.close()


@pytest.mark.parametrize("endpoint", [NatsStream], indirect=True, ids=["NatsStream"])
@pytest.mark.parametrize("key", ["k", None], ids=["with keys", "without keys"])
async def test_rows_that_wait_for_room_do_not_try_a_silent_destination_one_after_the_other(
    postgres: PostgresBackend,
    endpoint: Endpoint,
    silent_stream: str,
    key: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Target, "confirm_timeout", 2.0)
    records = Records()
    broker = broker_on(postgres, records)
    keys = [None if key is None else f"{key}{number}" for number in range(COUNT)]
    async with postgres.transaction() as session:
        await broker.publish_batch(*[b"x" * SIZE] * COUNT, queue="r", keys=keys, session=session)
    async with (
        endpoint.listening() as inbox,
        Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination, "r": silent_stream}) as relay,
    ):
        await until(lambda: relay.paused_destinations)
        assert list(relay.paused_destinations) == [silent_stream]
        async with postgres.transaction() as session:
            await broker.publish_batch(*[b"good"] * 20, queue="q", keys=keys[:20], session=session)
        await inbox.until(20)

        async def in_hand() -> int:
            return int(str(await postgres.one("SELECT count(*) FROM outbox WHERE acquired_token IS NOT NULL")))

        await until(in_hand, lambda count: count <= (1 if key else 100), seconds=20)
    assert {row.attempts_count for row in await postgres.rows()} == {0}
    assert records.named("relay_paused") == []
    assert await postgres.dead_letters() == []
