"""The program in a terminal: a pty of 40 lines, and of 160 columns by default."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import AsyncIterator

from tests.cli.programs import COMMAND, TIMEOUT, environment
from tests.waiting import until

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.raw = ""
        # Whether the program has ended, and all that it wrote was read.
        self.ended = False
        self._descriptor = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            self.raw += os.read(self._descriptor, 65536).decode()
        except OSError:  # the program has ended
            self.ended = True
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
async def terminal(*arguments: str, columns: int = 160, **variables: str) -> AsyncIterator[Terminal]:
    """Run a command in a terminal, and kill it at the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
        [*COMMAND, *arguments],
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
