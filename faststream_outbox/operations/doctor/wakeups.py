"""Checks of what wakes subscribers: LISTEN and NOTIFY, the queue of notifications, a pooler in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from faststream_outbox.operations.doctor.examination import Examination, private_engine
from faststream_outbox.operations.doctor.finding import Finding, script
from faststream_outbox.runtime.telemetry import describe
from faststream_outbox.storage.errors import advice
from faststream_outbox.storage.operating.control import Control
from faststream_outbox.storage.postgres.drivers import executor_of, run_on
from faststream_outbox.storage.postgres.notifications import Notifications
from faststream_outbox.storage.postgres.statements.examine.server import BACKEND, OLDEST_TRANSACTION
from faststream_outbox.storage.rows import to_datetime
from faststream_outbox.storage.schema.tables import notify_channel

# How long a notification may take; it takes a millisecond where nothing is wrong.
_ROUND_TRIP_SECONDS: Final = 3.0
# How often a second client tries to get the first one's server connection. Other clients may be faster now and then.
_TRIES: Final = 5


async def check_pooler(examination: Examination) -> AsyncIterator[Finding]:
    """Name a pooler: it announces a process id of its own, not that of the server."""
    async with AsyncExitStack() as stack:
        first = await _autocommit(stack, examination.engine)
        [[pid]] = await first.run_sync(run_on, BACKEND)
        driver: Any = (await first.get_raw_connection()).driver_connection
        if pid == executor_of(examination.engine, driver).connected_to():
            return
        # Of another pool, because that of the application may give one connection only.
        other_pool = private_engine(examination.engine)
        stack.push_async_callback(other_pool.dispose)
        shared = await _shares_sessions(first, await _autocommit(stack, other_pool))
    direct = "Give consumers, relays and this doctor a URL that leads to the server itself. Publishers may stay."
    lost = "processes that die are noticed when their leases end, not within seconds"
    if shared:
        examination.pooled = True
        yield Finding(
            "pooler",
            "warning",
            "A pooler in transaction mode is between this process and the server.",
            None,
            f"Notifications do not arrive through it: subscribers find new rows when they poll, after up to 10 "
            f"seconds, and {lost}.",
            direct,
        )
    else:
        yield Finding(
            "pooler",
            "info",
            "A pooler is between this process and the server, and keeps sessions.",
            None,
            f"Messages are handled as without it, but {lost}.",
            direct,
        )


async def _autocommit(stack: AsyncExitStack, engine: AsyncEngine) -> AsyncConnection:
    connection = await stack.enter_async_context(engine.connect())
    await connection.execution_options(isolation_level="AUTOCOMMIT")
    return connection


async def _shares_sessions(first: AsyncConnection, second: AsyncConnection) -> bool:
    """Return whether two clients get one server connection in turn, as only a pooler without sessions gives them."""
    pids = set[tuple[int, int]]()
    for _ in range(_TRIES):
        [[one]] = await first.run_sync(run_on, BACKEND)
        [[other]] = await second.run_sync(run_on, BACKEND)
        pids.add((one, other))
    return len(pids) > 1 or any(one == other for one, other in pids)


async def check_notifications(examination: Examination) -> AsyncIterator[Finding]:
    """Name a queue of notifications that fills, and notifications that do not arrive."""
    server = examination.server
    if server.in_recovery or server.read_only or examination.pooled:
        return  # named already
    share = server.notify_queue_share
    if share > examination.limits.notify_queue_share:
        yield await _full_queue(examination, share)
    failure = await _round_trip(examination)
    if failure is not None:
        yield Finding(
            "notifications",
            "warning",
            f"A notification did not come back: {describe(failure)}.",
            None,
            "Subscribers are not woken: they find new rows when they poll, after up to 10 seconds.",
            f"Look for a pooler, proxy or firewall between this process and the server.{advice(failure)}",
        )


async def _full_queue(examination: Examination, share: float) -> Finding:
    oldest = await examination.fetch(OLDEST_TRANSACTION)
    culprit, since, sql = "", None, None
    for pid, name, began in oldest:
        culprit = f" The oldest open transaction is that of process {pid} ({name or 'without a name'})."
        since, sql = to_datetime(began), script(f"SELECT pg_terminate_backend({pid})")
    return Finding(
        "notifications",
        "error",
        f"The server's queue of notifications is {share:.0%} full.{culprit}",
        since,
        "When it is full, every commit that sends a notification fails, and with it publishing.",
        "A session that listens keeps the queue while its transaction is open: end that session.",
        sql,
    )


async def _round_trip(examination: Examination) -> Exception | None:
    """Listen as a broker does, and send a notification to this connection; return what went wrong."""
    table = examination.tables.outbox
    notifications = Notifications(notify_channel(table.name, table.schema), BACKEND, Control(), None)
    try:
        async with (
            asyncio.timeout(_ROUND_TRIP_SECONDS),
            notifications.listen(examination.engine, lambda _queue: None) as listening,
        ):
            await listening.test()
    except Exception as error:  # noqa: BLE001 - any failure is the finding
        return error
    return None
