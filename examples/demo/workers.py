"""The workers that run at the same time, and share the messages of every queue."""

import asyncio
import tempfile

from examples.demo.process import Worker

_LOG_LINES = 20


class Workers:
    """Starts workers and ends them, and keeps what they wrote to their log."""

    def __init__(self, url: str, kafka: str) -> None:
        self._url = url
        self._kafka = kafka
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close(); it has no name, so nothing is left
        self.all: list[Worker] = []

    @property
    def failed(self) -> bool:
        """Whether one of them ended without being asked to."""
        return any(each.failed for each in self.all)

    async def start(self) -> Worker:
        """Start another one."""
        worker = Worker(len(self.all) + 1, self._url, self._kafka, self._log)
        self.all.append(worker)
        await worker.start()
        return worker

    async def stop(self) -> None:
        """End all as a deployment does."""
        await asyncio.gather(*(each.stop() for each in self.all))

    async def close(self) -> None:
        """End all processes and close the log."""
        await asyncio.gather(*(each.kill() for each in self.all))
        self._log.close()

    def log_tail(self) -> str:
        """Return the end of the log."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-_LOG_LINES:])
