"""The program as a process of its own: what it says, what it answers, and how it ends."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.servers.process import free_port

CHECKOUT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "faststream_outbox")
# A process starts within seconds, on a machine that has other things to do too.
PATIENCE = 90.0


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a program, without what the shell of the tests says about colours and widths."""
    left_out = {"FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {"PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1", "TERM": "xterm-256color"} | variables


def run(*arguments: str, command: tuple[str, ...] = COMMAND, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return subprocess.run(
        [*command, *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class Program:
    """A relay that runs, and tells in JSON what it does."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, health: int) -> None:
        self.process = process
        self._output = output
        self.health = health

    @property
    def said(self) -> str:
        return self._output.read_text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The lines of the log with this event; each line must be JSON, but for one that is being written."""
        told = [json.loads(line) for line in self.said.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in told if line.get("event") == event]

    async def heard(self, event: str) -> dict[str, Any]:
        """Wait for a line of the log."""
        async with self._patience():
            while not (found := self.lines(event)):
                await asyncio.sleep(0.05)
        return found[0]

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{self.health}{path}", timeout=PATIENCE)
        return answer.status_code, answer.json()

    async def until(self, path: str, status: int) -> dict[str, Any]:
        """Wait until a path is answered with a status."""
        async with self._patience():
            while True:
                with contextlib.suppress(httpx.TransportError):  # it does not listen yet
                    code, body = await self.get(path)
                    if code == status:
                        return body
                await asyncio.sleep(0.05)

    async def claimed(self, outbox: PostgresBackend) -> None:
        """Wait until it has rows in hand."""
        async with self._patience():
            while not await outbox.one("SELECT count(*) FROM outbox WHERE acquired_token IS NOT NULL"):
                await asyncio.sleep(0.02)

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return await asyncio.to_thread(self.process.wait, PATIENCE)

    @contextlib.asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(PATIENCE):
                yield
        except TimeoutError:
            raise AssertionError(f"It did not happen; the program said: {self.said}") from None


@contextlib.contextmanager
def relaying(*arguments: str, folder: Path, name: str = "relay", **variables: str) -> Iterator[Program]:
    """Run `faststream-outbox relay …`, and make sure that it is gone at the end."""
    port, output = free_port(), folder / f"{name}.log"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*COMMAND, "relay", "--health", str(port), *arguments],
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Program(process, output, port)
        finally:
            process.kill()
            process.wait(PATIENCE)


def password_of(database: Database) -> str:
    return database.dsn.partition("://")[2].partition("@")[0].partition(":")[2]
