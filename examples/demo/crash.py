"""The crash in the middle: the app is killed while it has messages in hand, and started again."""

import asyncio
import time
from collections.abc import Callable

from rich.console import Console

from examples.demo.messages import ORDERS
from examples.demo.process import AppProcess
from examples.demo.watch import Look, Watch

# Early enough that much is still to come.
KILL_AT_SHARE = 0.3
# Nothing at all changes for so long only if something is stuck: leases, retries and reminders take a few seconds.
PATIENCE_SECONDS = 20.0
_ASK_SECONDS = 0.02


async def kill_and_restart(console: Console, watch: Watch, app: AppProcess, orders: int) -> int:
    """Kill the app when it has seen a third of the orders; returns how many messages it had in hand."""

    def is_time(look: Look) -> bool:
        seen = sum(each.handled for each in look.queues if each.queue == ORDERS)
        placed = look.accepted + look.cancelled
        # A very small run may be over before that.
        return seen >= orders * KILL_AT_SHARE or (placed == orders and not look.waiting)

    if not await wait_until(is_time, watch, app):
        return 0
    pid = app.pid
    await app.kill()
    held = (await watch.look_again()).in_flight
    await app.start()
    console.print(f"  App {pid} killed with {held:,} messages in hand; app {app.pid} started")
    return held


async def wait_until(is_time: Callable[[Look], bool], watch: Watch, app: AppProcess) -> bool:
    """Wait; False when that would be in vain, because the app is gone or nothing moves any more."""
    moved_at, last = time.monotonic(), watch.look
    while not is_time(watch.look):
        if watch.look != last:
            moved_at, last = time.monotonic(), watch.look
        if app.failed or time.monotonic() - moved_at > PATIENCE_SECONDS:
            return False
        await asyncio.sleep(_ASK_SECONDS)
    return True
