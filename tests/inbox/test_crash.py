"""A process that is killed after its commit and before its ack."""

import asyncio
import signal
import sys

from faststream_outbox.annotations import InboxSession
from tests.broker.brokers import started, until_empty
from tests.inbox.desk import Desk


async def test_a_message_that_was_committed_and_not_acked_is_skipped(desk: Desk) -> None:
    broker = desk.broker()
    await desk.send(broker, "a", message_id="1")
    url = desk.engine.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.inbox.process", url)
    async with asyncio.timeout(60):
        assert await process.wait() == -signal.SIGKILL
    [row] = await desk.postgres.rows()
    assert (row.deliveries_count, row.acquired_token is None) == (1, False), "the broker has not heard of it"
    assert (await desk.written(), await desk.seen()) == (["a"], [("desk", "1")]), "and it was committed"

    calls: list[str] = []

    @desk.subscriber(broker, desk.inbox(), lease_ttl_seconds=1.0)
    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await desk.write(session, body)

    async with started(broker):
        await until_empty(desk.postgres)
    assert (calls, await desk.written()) == ([], ["a"])
    assert len(desk.records.named("inbox_skipped")) == 1
