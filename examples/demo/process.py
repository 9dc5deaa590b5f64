"""A worker: the app in a child process that can be started, killed and stopped."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import IO

MODULE = "examples.demo.app"
_CHECKOUT = Path(__file__).parents[2]
# A graceful stop finishes the messages in hand. If it takes longer than this, the worker is killed.
STOP_SECONDS = 20.0


class Worker:
    """Starts a process of the app, and kills or stops it."""

    def __init__(self, number: int, url: str, kafka: str, log: IO[bytes]) -> None:
        self.number = number
        self._url = url
        self._kafka = kafka
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    @property
    def failed(self) -> bool:
        """Whether it ended without being asked to."""
        return self._process is not None and self._process.returncode is not None

    async def start(self) -> None:
        """Start it. It is ready about a second later; the caller does not wait."""
        # In the environment: every user of the machine can read the arguments of a process.
        given = {"DEMO_DATABASE_URL": self._url, "DEMO_KAFKA": self._kafka, "DEMO_WORKER": str(self.number)}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE),
            cwd=_CHECKOUT,
            env=os.environ | given,
            stdin=asyncio.subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for us; we stop the workers then
        )

    async def kill(self) -> None:
        """End it as a crash does: at once, during its work."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End it as a deployment does: it claims no more, and finishes what it has in hand."""
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
