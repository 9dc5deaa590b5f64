"""The app as a child process that can be started, killed, started again and stopped."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

MODULE = "examples.demo.app"
_CHECKOUT = Path(__file__).parents[2]
# A graceful stop finishes the messages in hand, which takes a moment; past this the app is killed after all.
STOP_SECONDS = 20.0
_LOG_LINES = 20


class AppProcess:
    """Starts the app, ends it one way or the other, and keeps what it wrote to its log."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._process: asyncio.subprocess.Process | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close(); it has no name, so nothing is left
        self.lives = 0

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    @property
    def failed(self) -> bool:
        """Whether it ended without being asked to."""
        return self._process is not None and self._process.returncode is not None

    async def start(self) -> None:
        """Start the app; it is ready a second later, and nobody has to wait for that."""
        self.lives += 1
        # In the environment, because everybody on the machine can read the arguments of a process.
        given = {"DEMO_DATABASE_URL": self._url, "DEMO_LIFE": str(self.lives)}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE),
            cwd=_CHECKOUT,
            env=os.environ | given,
            stdin=asyncio.subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for us; we stop the app then
        )

    async def kill(self) -> None:
        """End it as a crash does: at once, in the middle of whatever it is doing."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End it as a deployment does: it claims no more, and finishes what it has in hand."""
        await self._end(signal.SIGTERM)

    async def close(self) -> None:
        """Leave neither process nor log behind."""
        await self._end(signal.SIGKILL)
        self._log.close()

    def log_tail(self) -> str:
        """Return the end of the log."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-_LOG_LINES:])

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
