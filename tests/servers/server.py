"""What all servers have in common: a port and a directory that outlive their process."""

import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from tests.servers.process import Process, accepts, free_port


class Installable(ABC):
    """Something that a machine has or lacks."""

    #: What a report calls it.
    name: ClassVar[str]
    #: How somebody who lacks it gets it.
    how: ClassVar[str]

    @classmethod
    @abstractmethod
    def lacks(cls) -> str | None:
        """Tell what is missing on this machine to start one."""


class Server(Installable):
    """A server that a test may stop, kill or silence, and bring back on the same port with the same data.

    ```python
    async with Redis() as redis:
        broker = RedisBroker(redis.url)
        await redis.restart()
    ```
    """

    #: A loaded machine is slow; one that hangs should be told.
    seconds_to_start: ClassVar[float] = 120.0

    def __init__(self) -> None:
        self.port = free_port()
        self._process: Process | None = None
        self._directory: Path | None = None
        self._prepared = False

    @abstractmethod
    def launch(self) -> Process:
        """Start the program, which need not be ready yet."""

    async def prepare(self) -> None:
        """Do what precedes the first start."""

    async def ready(self) -> bool:
        return await accepts(self.port)

    @property
    def directory(self) -> Path:
        """Everything it writes."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=f"outbox-{self.name.lower()}-"))
        return self._directory

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.runs

    @property
    def processes(self) -> list[Process]:
        """What runs of it."""
        return [self._process] if self._process is not None and self._process.runs else []

    async def start(self) -> None:
        """Be up, whatever was before: stopped, killed, paused, or up already."""
        if self._process is not None and self._process.runs:
            self._process.resume()
        else:
            if not self._prepared:
                await self.prepare()
                self._prepared = True
            self._process = self.launch()
        await self._process.until(self.ready, seconds=self.seconds_to_start)

    async def stop(self) -> None:
        """End in order. Port and data remain."""
        if self._process is not None and self._process.runs:
            await self._process.stop()

    async def kill(self) -> None:
        """End without a chance to say or write anything. Port and data remain."""
        if self._process is not None:
            self._process.kill()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def pause(self) -> None:
        """Fall silent: connections stay open, new ones are taken by the kernel, and nothing is answered."""
        assert self._process is not None
        self._process.pause()

    def resume(self) -> None:
        assert self._process is not None
        self._process.resume()

    def end(self) -> None:
        """Be gone, with all data."""
        if self._process is not None:
            self._process.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        self._prepared = False

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()
