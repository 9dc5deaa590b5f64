"""The live view in a terminal."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator

from tests.cli.programs import COMMAND, TIMEOUT, environment, password_of
from tests.cli.relay_setup import RelaySetup
from tests.cli.rows import publish
from tests.waiting import until

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.raw = ""
        self._descriptor = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            self.raw += os.read(self._descriptor, 65536).decode()
        except OSError:  # the program has ended
            asyncio.get_running_loop().remove_reader(self._descriptor)

    @property
    def text(self) -> str:
        return CONTROL.sub("", self.raw)

    async def wait_for(self, pattern: str) -> None:
        """Wait for a text on the screen that was not there before."""
        seen = len(self.text)
        try:
            await until(lambda: re.search(pattern, self.text[seen:]), seconds=TIMEOUT)
        except TimeoutError:
            raise AssertionError(f"{pattern} is not on the screen: {self.text[-3000:]}") from None


@contextlib.asynccontextmanager
async def terminal(*arguments: str, **variables: str) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    process = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
        [*COMMAND, "relay", *arguments],
        env=environment(**variables),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    screen = Terminal(ours, process)
    try:
        yield screen
    finally:
        process.kill()
        process.wait(TIMEOUT)
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


async def test_the_view_shows_the_figures(setup: RelaySetup) -> None:
    async with terminal(*setup.route, "--route", "refunds=elsewhere", OUTBOX_DSN=setup.database.dsn) as screen:
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
