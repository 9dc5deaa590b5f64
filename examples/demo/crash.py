"""The crash: kill one of the workers while it handles messages, and start another one."""

import asyncio
import time
from collections.abc import Callable

from rich.console import Console
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from examples.demo.app import name_of
from examples.demo.messages import ORDERS
from examples.demo.watch import Look, Watch
from examples.demo.workers import Workers

# Early enough that much is still to come.
KILL_AT_SHARE = 0.3
# Leases, retries and reminders take a few seconds: if nothing changes for longer, something is stuck.
PATIENCE_SECONDS = 20.0
_ASK_SECONDS = 0.02
# The server ends the statement of a dead client, and then its connection, within milliseconds.
_GONE_SECONDS = 2.0
_CONNECTIONS = text("SELECT count(*) FROM pg_stat_activity WHERE application_name = :name")
_MOMENT_SECONDS = 0.5
_AT_A_CHARGE = text("""
SELECT EXISTS (SELECT FROM deliveries WHERE queue = 'accounts' AND worker = :worker AND ended_at IS NULL)
""")
# In hand: given to a handler, and not settled.
_CUT_OFF = text("""
UPDATE deliveries d SET cut_off_at = clock_timestamp() FROM outbox o
 WHERE d.worker = :worker AND o.id = d.message_id AND o.attempts_count + 1 = d.attempt
RETURNING o.entity_key
""")


async def kill_one(console: Console, watch: Watch, workers: Workers, orders: int) -> None:
    """When a third of the orders was handled, kill the busier worker and start another one."""

    def is_time(look: Look) -> bool:
        seen = sum(each.handled for each in look.queues if each.queue == ORDERS)
        placed = look.accepted + look.cancelled
        # A very small run may be over before that.
        return seen >= orders * KILL_AT_SHARE or (placed == orders and not look.waiting)

    if not await wait_until(is_time, watch, workers):
        return
    busiest = max(watch.look.workers, key=lambda each: each.handled, default=None)
    victim = workers.all[0 if busiest is None else busiest.number - 1]
    pid = victim.pid
    async with watch.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await _wait_for_a_charge(connection, victim.number)
        await victim.kill()
        watch.killed.add(victim.number)
        keys = await _note_what_was_cut_off(connection, victim.number)
    charges = len(keys) - keys.count(None)
    console.print(
        f"  Worker {victim.number} (process {pid}) killed, {len(keys):,} messages in hand, {charges:,} of them charges"
    )
    other = await workers.start()
    console.print(f"  Worker {other.number} (process {other.pid}) started")


async def _wait_for_a_charge(connection: AsyncConnection, worker: int) -> None:
    """Wait until the worker handles a charge, if there are any."""
    deadline = time.monotonic() + _MOMENT_SECONDS
    while not await connection.scalar(_AT_A_CHARGE, {"worker": worker}) and time.monotonic() < deadline:
        await asyncio.sleep(_ASK_SECONDS)


async def _note_what_was_cut_off(connection: AsyncConnection, worker: int) -> list[str | None]:
    deadline = time.monotonic() + _GONE_SECONDS
    while await connection.scalar(_CONNECTIONS, {"name": name_of(worker)}) and time.monotonic() < deadline:
        await asyncio.sleep(_ASK_SECONDS)
    return list(await connection.scalars(_CUT_OFF, {"worker": worker}))


async def wait_until(is_time: Callable[[Look], bool], watch: Watch, workers: Workers) -> bool:
    """Wait. Return False if a worker has ended or nothing changes any more."""
    moved_at, last = time.monotonic(), watch.look
    while not is_time(watch.look):
        if watch.look != last:
            moved_at, last = time.monotonic(), watch.look
        if workers.failed or time.monotonic() - moved_at > PATIENCE_SECONDS:
            return False
        await asyncio.sleep(_ASK_SECONDS)
    return True
