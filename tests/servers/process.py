"""One program on loopback: started, waited for, and ended by its pid."""

import asyncio
import ctypes
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

_PR_SET_PDEATHSIG = 1
_PORTS: Final = range(10_240, 32_000)
# More than one process of the tests ever needs at once; there are shares for 64 processes.
_SHARE: Final = 340
_given: set[int] = set()
_holders: list[socket.socket] = []
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Process:
    """A program with its output in a file. It belongs to no event loop, so that one started by a test serves the next.

    On Linux it dies with the thread that started it: a suite that is killed leaves nothing behind.
    """

    def __init__(self, *command: str, log: Path, **options: Any) -> None:
        self._command = command
        self._log = log
        with log.open("ab") as output:
            # Its own session, or an interrupt at the terminal would end it under the tests.
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  one system call, and no lock to wait for
                **options,
            )
        self._paused = False

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def runs(self) -> bool:
        return self._popen.poll() is None

    async def until(self, ready: Callable[[], Awaitable[bool]], *, seconds: float) -> None:
        """Wait for it to be ready, and say what it wrote if it will not be."""
        try:
            async with asyncio.timeout(seconds):
                while not await ready():
                    if not self.runs:
                        raise RuntimeError(f"{self._command[0]} ended with {self._popen.returncode}: {self._said()}")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise RuntimeError(f"{self._command[0]} was not ready in {seconds} s: {self._said()}") from None

    def pause(self) -> None:
        """Let it hold its connections, and say nothing."""
        self._popen.send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._popen.send_signal(signal.SIGCONT)
            self._paused = False

    async def stop(self, *, seconds: float = 20.0) -> None:
        """Ask it to end, and insist when it does not."""
        self.resume()
        self._popen.terminate()
        try:
            async with asyncio.timeout(seconds):
                while self.runs:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            self.kill()

    def kill(self) -> None:
        """End it as a power cut does."""
        if self.runs:
            self._popen.kill()
        self._popen.wait()

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


def free_port() -> int:
    """Return a port of this process that nobody listens on, not given before, below those that clients get.

    Another process of these tests never gets it, not even while its server is down.
    """
    share = _share_of_ports()
    if not set(share) - _given:
        _given.clear()
    for _ in range(10_000):
        port = random.choice(share)
        with socket.socket() as free:
            if port in _given:
                continue
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise RuntimeError("no port is free on 127.0.0.1")


@cache
def _share_of_ports() -> range:
    """Take a share that no other process has; a socket's name in Linux's abstract namespace holds it for our life."""
    if sys.platform == "linux":
        for number in range(len(_PORTS) // _SHARE):
            holder = socket.socket(socket.AF_UNIX)
            try:
                holder.bind(f"\0faststream-outbox-tests-ports-{number}")
            except OSError:
                holder.close()
                continue
            _holders.append(holder)
            return _PORTS[number * _SHARE : (number + 1) * _SHARE]
    return _PORTS


async def accepts(port: int) -> bool:
    """Tell whether connections are taken."""
    return await ask(port) is not None


async def ask(port: int, question: bytes = b"", *, lines: int = 0, seconds: float = 5.0) -> bytes | None:
    """Connect, ask, and give so many lines of an answer; none if there is nobody to ask."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(question)
                return b"".join([await reader.readline() for _ in range(lines)])
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None


@asynccontextmanager
async def running(port: int, *command: str, log: Path, **options: Any) -> AsyncIterator[Process]:
    """Run a program for as long as it is needed, from when it takes connections."""
    process = Process(*command, log=log, **options)
    try:
        await process.until(lambda: accepts(port), seconds=20)
        yield process
    finally:
        process.kill()


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
