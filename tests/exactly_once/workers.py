"""Workers as a test sees them: asked for at the nursery, signalled one by one, and none left behind."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.exactly_once.worker_options import Orders

_CHECKOUT: Final = Path(__file__).parents[2]
# For the nursery's imports, or a worker's connections; a fork takes milliseconds.
ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Worker:
    """A process, held by a handle: its id may be another's when the nursery has died, and its signals with it."""

    pid: int
    handle: int
    name: str
    at_work: asyncio.Event

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        signal.pidfd_send_signal(self.handle, number)


class Workers:
    """The nursery, asked one thing at a time."""

    def __init__(self, process: asyncio.subprocess.Process, bell: asyncio.StreamReader) -> None:
        self.nursery = process
        self._bell = bell
        self._started: list[Worker] = []
        self._lock = asyncio.Lock()
        self._at_work: dict[str, asyncio.Event] = {}

    async def start(self, orders: Orders) -> Worker:
        """Start a worker; what comes back has not begun to work."""
        at_work = self._at_work[orders.name] = asyncio.Event()
        pid = await self._ask("fork", asdict(orders))
        worker = Worker(pid, os.pidfd_open(pid), orders.name, at_work)
        self._started.append(worker)
        return worker

    async def kill(self, worker: Worker) -> None:
        """Kill a worker, and see it gone; one that was gone before has crashed."""
        worker.signal(signal.SIGKILL)
        status = await self._ask("reap", worker.pid)
        assert status == -signal.SIGKILL, f"{worker.name} ended by itself, with status {status}"

    async def listen(self) -> None:
        """Hear who has begun to work, until nobody is left to begin."""
        while name := (await self._bell.readline()).decode().strip():
            self._at_work[name].set()

    async def close(self) -> None:
        """End the nursery, and all of its workers with it."""
        assert self.nursery.stdin is not None
        self.nursery.stdin.close()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.nursery.wait()
        except TimeoutError:
            self.nursery.kill()  # workers see that, and leave
            await self.nursery.wait()
        for worker in self._started:
            with suppress(ProcessLookupError):
                worker.signal(signal.SIGKILL)  # one that was stopped does not see that the nursery is gone
            os.close(worker.handle)

    async def _ask(self, request: str, argument: Any) -> int:
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        async with self._lock, asyncio.timeout(ANSWER_SECONDS):
            self.nursery.stdin.write(f"{json.dumps([request, argument])}\n".encode())
            return int(await self.nursery.stdout.readline())


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
            *(sys.executable, "-m", "tests.exactly_once.fork_server", str(rung)),
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
            await workers.close()
            await listening  # the pipe ends with the last who could write to it
    finally:
        pipe.close()
