"""What becomes of rows after they were sent: those confirmed are gone, and the others as it was answered."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from faststream_outbox import ConstantRetry
from faststream_outbox.relay import Relay
from faststream_outbox.relay.targets import OutageError
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import Endpoint, RedisStream
from tests.relay.memory_target import Memory
from tests.waiting import until, until_empty

ROOT = Path(__file__).parents[2]
LATER = ConstantRetry(delay_seconds=1000, max_attempts=None)


async def publish(postgres: PostgresBackend, *bodies: bytes, key: str | None = "a") -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        keys = None if key is None else [key] * len(bodies)
        await broker.publish_batch(*bodies, queue="q", keys=keys, session=session)


async def test_exactly_what_was_confirmed_of_a_key_is_settled(postgres: PostgresBackend) -> None:
    endpoint = Memory(lambda body: LookupError("not now") if body == b"3" else None)
    await publish(postgres, *(b"%d" % n for n in range(1, 6)))
    await publish(postgres, b"other", key="b")
    async with Relay(broker_on(postgres), to=endpoint, routes={"q": "x"}, retry_strategy=LATER):
        await until(lambda: len(endpoint.sent) == 3)
        await until(postgres.rows, lambda rows: len(rows) == 3 and rows[0].attempts_count)
    assert sorted(endpoint.sent) == [b"1", b"2", b"other"]
    assert [(row.payload, row.attempts_count) for row in await postgres.rows()] == [(b"3", 1), (b"4", 0), (b"5", 0)]


async def test_each_row_without_a_key_is_settled_by_itself(postgres: PostgresBackend) -> None:
    endpoint = Memory(lambda body: LookupError("not now") if body == b"3" else None)
    await publish(postgres, *(b"%d" % n for n in range(1, 6)), key=None)
    async with Relay(broker_on(postgres), to=endpoint, routes={"q": "x"}, retry_strategy=LATER):
        await until(postgres.rows, lambda rows: len(rows) == 1 and rows[0].attempts_count)
    assert sorted(endpoint.sent) == [b"1", b"2", b"4", b"5"]


async def test_rows_whose_lease_was_lost_in_an_outage_are_not_sent(postgres: PostgresBackend) -> None:
    """The relay that has claimed them meanwhile sends them, and perhaps those behind them."""
    down, records = True, Records()

    def fails(_: bytes) -> Exception | None:
        return OutageError("down") if down else None

    endpoint = Memory(fails)
    endpoint.is_up = False
    await publish(postgres, b"1", b"2")
    relay = Relay(broker_on(postgres, records), to=endpoint, routes={"q": "x"}, lease_ttl_seconds=3600)
    async with relay:
        await until(lambda: relay.paused)
        assert str(relay.pause_reason) == "down"
        assert relay.alive
        # Another one took them over, and is not done yet.
        await postgres.run(
            "UPDATE outbox SET acquired_token = gen_random_uuid(), lease_expires_at = now() + interval '1 hour'"
        )
        relay._pipeline._ledger.all()[0].held_until = 0.0  # type: ignore[union-attr] # as after a pause of this process
        down, endpoint.is_up = False, True
        await until(lambda: not relay.paused)
        await until(lambda: records.named("lease_lost"))
        assert endpoint.sent == []
    assert [row.attempts_count for row in await postgres.rows()] == [0, 0]


@pytest.mark.parametrize("endpoint", [RedisStream], indirect=True)
async def test_a_relay_that_is_killed_before_it_settles(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    """What was confirmed and not settled is sent again, in its order: never less, never another order."""
    await publish(postgres, *(b"%d" % n for n in range(50)))
    url = postgres.engine.url.render_as_string(hide_password=False)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.relay.killed_relay", url, postgres.outbox_table.name, endpoint.running.url),
        endpoint.destination,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    async with asyncio.timeout(60):
        assert await child.wait() == -signal.SIGKILL
    assert len(await postgres.rows()) == 50
    async with (
        endpoint.listening() as inbox,
        Relay(broker_on(postgres), to=endpoint.broker(), routes={"q": endpoint.destination}),
    ):
        async with asyncio.timeout(30):
            await until_empty(postgres)
        await until(lambda: len(inbox.bodies) == 100)
    assert inbox.bodies == 2 * [b"%d" % n for n in range(50)]


async def test_a_queue_that_a_subscriber_reads_is_not_relayed(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q")
    async def handle(_: bytes) -> None: ...

    with pytest.raises(RuntimeError, match="A subscriber of this broker reads queue 'q'"):
        await Relay(broker, to=Memory(), routes={"q": "there"}).start()
