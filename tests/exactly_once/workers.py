"""Workers as a test sees them: asked for at the nursery, signalled by their ids, and none left behind."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.exactly_once.orders import Orders

_CHECKOUT: Final = Path(__file__).parents[2]
# For the nursery's imports, or a worker's connections; a fork takes milliseconds.
ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Worker:
    """A process. Its id is its own until it is reaped, and that is up to us."""

    pid: int
    name: str
    at_work: asyncio.Event

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)


class Workers:
    """The nursery, asked one thing at a time."""

    def __init__(self, process: asyncio.subprocess.Process, bell: asyncio.StreamReader) -> None:
        self._process = process
        self._bell = bell
        self._lock = asyncio.Lock()
        self._at_work: dict[str, asyncio.Event] = {}

    @property
    def nursery_pid(self) -> int:
        """The id of the nursery."""
        return self._process.pid

    async def start(self, orders: Orders) -> Worker:
        """Start a worker; what comes back has not begun to work."""
        at_work = self._at_work[orders.name] = asyncio.Event()
        return Worker(await self._ask("fork", asdict(orders)), orders.name, at_work)

    async def kill(self, worker: Worker) -> None:
        """Kill a worker, and see it gone; one that was gone before has crashed."""
        worker.signal(signal.SIGKILL)
        status = await self._ask("reap", worker.pid)
        assert status == -signal.SIGKILL, f"{worker.name} ended by itself, with status {status}"

    async def listen(self) -> None:
        """Hear who has begun to work, until cancelled."""
        while name := (await self._bell.readline()).decode().strip():
            self._at_work[name].set()

    async def _ask(self, request: str, argument: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._lock, asyncio.timeout(ANSWER_SECONDS):
            self._process.stdin.write(f"{json.dumps([request, argument])}\n".encode())
            return int(await self._process.stdout.readline())


@asynccontextmanager
async def open_nursery() -> AsyncIterator[Workers]:
    """Start a nursery; when it is left, its workers end with it."""
    heard, rung = os.pipe()
    bell = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(bell), os.fdopen(heard, "rb")
    )
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.exactly_once.nursery", str(rung)),
            cwd=_CHECKOUT,
            pass_fds=[rung],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        os.close(rung)
        workers = Workers(process, bell)
        listening = asyncio.create_task(workers.listen())
        try:
            yield workers
        finally:
            await _close(process)
            await listening  # the pipe ends with the last who could write to it
    finally:
        pipe.close()


async def _close(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()  # workers see that, and leave
        await process.wait()
