"""The live view in a terminal."""

import asyncio
import io
import re
import signal
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from faststream_outbox.cli.relay.status import Status
from faststream_outbox.cli.relay.view import draw
from tests.cli.programs import TIMEOUT, password_of
from tests.cli.relay.relay_setup import RelaySetup
from tests.cli.relay.rows import publish
from tests.cli.terminals import terminal


async def test_the_view_shows_the_figures(setup: RelaySetup) -> None:
    async with terminal("relay", *setup.route, "--route", "refunds=elsewhere", OUTBOX_DSN=setup.database.dsn) as screen:
        await screen.wait_for(r"running\s+to redis://127.0.0.1:\d+ +0 relayed +0 rows/s +lag none")
        await publish(setup.outbox, range(300))
        # relayed, per second, ready, lag, in flight, blocked keys, parked keys, dead
        await screen.wait_for(r"orders +300 +\d+ +0 +none +0 +0 +0 +0")
        await setup.redis.stop()
        await publish(setup.outbox, range(300, 320))
        await screen.wait_for(r"paused: the broker is down: \w+")
        # The relay keeps the rows that it has claimed; rows that are published now wait in the table.
        await publish(setup.outbox, range(20), queue="refunds")
        await screen.wait_for(r"orders +300 +\d+ +0 +\d+\.\d s +[1-9]")
        await screen.wait_for(r"refunds +0 +\d+ +[1-9]\d* +\d+\.\d s +0")
        # The log scrolls above the table.
        assert "The broker is down; no rows are claimed until it answers again" in screen.text
        await setup.redis.start()
        await screen.wait_for(r"orders +320 +\d+ +0 +none")
        await screen.wait_for(r"refunds +20 +\d+ +0 +none")
        screen.process.send_signal(signal.SIGINT)
        await screen.wait_for(r"340 rows were relayed")
        assert await asyncio.to_thread(screen.process.wait, TIMEOUT) == 0, screen.text
        assert screen.raw.endswith("\x1b[?25h") or screen.raw.rfind("\x1b[?25h") > screen.raw.rfind("\x1b[?25l")
        assert password_of(setup.database) not in screen.text


def test_a_queue_that_an_operator_paused_is_marked() -> None:
    status = Status({"orders": "s", "refunds": "t"}, "redis://127.0.0.1")
    relay: Any = SimpleNamespace(down=False, paused_destinations={}, paused_queues={"orders": "by ann (a migration)"})
    status.relay = relay
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(draw(status))
    text = console.export_text()
    assert re.search(r"orders paused +0 +0", text)
    assert re.search(r"refunds +0 +0", text)
