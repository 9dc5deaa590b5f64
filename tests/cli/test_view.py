"""What is seen in a terminal."""

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

from tests.cli.programs import COMMAND, PATIENCE, environment, password_of
from tests.cli.relay_setup import World
from tests.cli.rows import publish

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

    async def shows(self, pattern: str) -> None:
        """Wait until something is on the screen that was not before."""
        seen = len(self.text)
        try:
            async with asyncio.timeout(PATIENCE):
                while not re.search(pattern, self.text[seen:]):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{pattern} is not to be seen: {self.text[-3000:]}") from None


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
        process.wait(PATIENCE)
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


async def test_the_figures_are_seen(world: World) -> None:
    async with terminal(*world.route, "--route", "refunds=elsewhere", OUTBOX_DSN=world.database.dsn) as screen:
        await screen.shows(r"running\s+to redis://127.0.0.1:\d+ +0 relayed +0 rows/s +lag none")
        await publish(world.outbox, range(300))
        # relayed, per second, ready, lag, in flight, blocked keys, parked keys, dead
        await screen.shows(r"orders +300 +\d+ +0 +none +0 +0 +0 +0")
        await world.redis.stop()
        await publish(world.outbox, range(300, 320))
        await screen.shows(r"paused: the broker is down: \w+")
        # What was claimed is kept for when it is back, and what comes now waits in the table.
        await publish(world.outbox, range(20), queue="refunds")
        await screen.shows(r"orders +300 +\d+ +0 +\d+\.\d s +[1-9]")
        await screen.shows(r"refunds +0 +\d+ +[1-9]\d* +\d+\.\d s +0")
        # The log goes by above.
        assert "The broker is down, so nothing is claimed until it is back" in screen.text
        await world.redis.start()
        await screen.shows(r"orders +320 +\d+ +0 +none")
        await screen.shows(r"refunds +20 +\d+ +0 +none")
        screen.process.send_signal(signal.SIGINT)
        await screen.shows(r"340 rows were relayed")
        assert await asyncio.to_thread(screen.process.wait, PATIENCE) == 0, screen.text
        assert screen.raw.endswith("\x1b[?25h") or screen.raw.rfind("\x1b[?25h") > screen.raw.rfind("\x1b[?25l")
        assert password_of(world.database) not in screen.text
