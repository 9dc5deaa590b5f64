"""The program as a process of its own: its output, its health endpoint and its exit code."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.servers.process import free_port
from tests.waiting import until

CHECKOUT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "faststream_outbox")
# A process starts within seconds; this leaves room for a busy machine.
TIMEOUT = 90.0


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a program, without the shell's variables about colours and widths."""
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
        timeout=TIMEOUT,
        check=False,
    )


class Program:
    """A relay that runs and logs JSON lines."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, health: int) -> None:
        self.process = process
        self._output = output
        self.health = health

    @property
    def output(self) -> str:
        return self._output.read_text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the log with this event; each line must be JSON, except one that is being written."""
        logged = [json.loads(line) for line in self.output.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in logged if line.get("event") == event]

    async def wait_for_line(self, event: str) -> dict[str, Any]:
        """Wait for a line of the log, and return the first."""
        lines: list[dict[str, Any]] = await self._until(lambda: self.lines(event))
        return lines[0]

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{self.health}{path}", timeout=TIMEOUT)
        return answer.status_code, answer.json()

    async def scrape(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Return the metrics: by name, and by the values of their labels in the order of the labels' names."""
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{self.health}/metrics", timeout=TIMEOUT)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/plain; version=")
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                own = [value for name, value in sorted(sample.labels.items()) if name not in ("app_name", "broker")]
                found.setdefault(sample.name, {})[tuple(own)] = sample.value
        return found

    async def wait_for_answer(self, path: str, status: int) -> dict[str, Any]:
        """Wait until a path is answered with a status, and return the body."""

        async def get() -> tuple[int, dict[str, Any]]:
            try:
                return await self.get(path)
            except httpx.TransportError:  # it does not listen yet
                return 0, {}

        answer: tuple[int, dict[str, Any]] = await self._until(get, lambda answer: answer[0] == status)
        return answer[1]

    async def wait_for_claims(self, outbox: PostgresBackend) -> None:
        """Wait until the relay has claimed rows."""
        await self._until(lambda: outbox.one("SELECT count(*) FROM outbox WHERE acquired_token IS NOT NULL"))

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return await asyncio.to_thread(self.process.wait, TIMEOUT)

    async def _until(self, look: Callable[[], Any], accept: Callable[[Any], object] = bool) -> Any:
        try:
            return await until(look, accept, seconds=TIMEOUT)
        except TimeoutError as error:
            raise AssertionError(f"{error}. The output of the program: {self.output}") from None


@contextlib.contextmanager
def relaying(*arguments: str, folder: Path, name: str = "relay", **variables: str) -> Iterator[Program]:
    """Run `faststream-outbox relay …`, and kill it at the end."""
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
            process.wait(TIMEOUT)


class Running:
    """A command that runs until it is interrupted."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output

    @property
    def output(self) -> str:
        """What it has written to stdout, up to the last whole line."""
        return self._output.read_text().rpartition("\n")[0]

    async def interrupt(self) -> int:
        """Press Ctrl-C, and return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return await asyncio.to_thread(self._process.wait, TIMEOUT)


@contextlib.contextmanager
def running(*arguments: str, output: Path, **variables: str) -> Iterator[Running]:
    """Run a command that does not end by itself, with stdout in a file; kill it at the end."""
    with output.open("w") as file:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=file,
            start_new_session=True,
        )
        try:
            yield Running(process, output)
        finally:
            process.kill()
            process.wait(TIMEOUT)


def password_of(database: Database) -> str:
    return database.dsn.partition("://")[2].partition("@")[0].partition(":")[2]
