"""A process that is killed after its commit and before its ack."""

import asyncio
import signal
import sys

import pytest
from sqlalchemy import QueuePool, text

from faststream_outbox.annotations import InboxSession
from faststream_outbox.storage.postgres.inbox import InboxStore
from tests.broker.brokers import started
from tests.inbox.inbox_app import InboxApp
from tests.waiting import until, until_empty


async def test_a_message_that_was_committed_and_not_acked_is_skipped(app: InboxApp) -> None:
    broker = app.broker()
    await app.send(broker, "a", message_id="1")
    url = app.engine.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.inbox.killed_consumer", url)
    async with asyncio.timeout(60):
        assert await process.wait() == -signal.SIGKILL
    [row] = await app.postgres.rows()
    assert (row.deliveries_count, row.acquired_token is None) == (1, False), "the broker has not acked of it"
    assert (await app.written(), await app.seen()) == (["a"], [("billing", "1")]), "and it was committed"

    calls: list[str] = []

    @app.subscriber(broker, app.inbox(), lease_ttl_seconds=1.0)
    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await app.write(session, body)

    async with started(broker):
        await until_empty(app.postgres)
    assert (calls, await app.written()) == ([], ["a"])
    assert len(app.records.named("inbox_skipped")) == 1


@pytest.mark.parametrize("times", [1, 2])
async def test_a_commit_that_is_cancelled_keeps_no_connection_and_no_half(app: InboxApp, times: int) -> None:
    """The record shows whether the commit happened."""
    await app.postgres.run(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$"
    )
    await app.postgres.run(
        "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    transaction = await InboxStore(app.engine, app.inbox_table).begin("billing", "1")
    assert transaction is not None
    await app.write(transaction.session, "a")
    async with app.postgres.transaction() as session:
        await session.execute(text("SELECT pg_advisory_xact_lock(1)"))
        commit = asyncio.create_task(transaction.end())
        await until(
            lambda: app.postgres.one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        )
        for _ in range(times):
            commit.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await commit
    pool = app.engine.pool
    assert isinstance(pool, QueuePool)
    assert pool.checkedout() == 0

    # The server may only now come to it, between one look and the other; a half that stays is what must not be.
    async def halves() -> tuple[object, object]:
        return await app.written(), await app.seen()

    await until(halves, lambda found: found in (([], []), (["a"], [("billing", "1")])))
