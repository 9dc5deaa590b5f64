"""What the worker and the producer share: a log, a store, signals, and patience with connections that break."""

import asyncio
import logging
import random
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from sqlalchemy.ext.asyncio import create_async_engine

from tests.soak.history import Crashed, HistoryWriter, Trouble
from tests.soak.settings import Settings

# No statement of a soak takes that long, unless somebody waits for ever.
OPERATION_SECONDS: Final = 10.0
# What no lost connection explains.
_MISTAKES: Final = (AssertionError, AttributeError, LookupError, NameError, TypeError)


class SoakProcess(ABC):
    """SIGTERM: finish what was begun, and leave. SIGUSR1: be quick and do no more harm, the round is being drained."""

    # For how long it may find no way back to the server. Its restart is part of it, and took 12 s once on a busy
    # machine.
    reconnect_seconds = 20.0

    def __init__(self, settings: Settings, name: str) -> None:
        self.stopping = asyncio.Event()
        self.calm = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGUSR1, self.calm.set)
        loop.set_exception_handler(lambda *_: None)  # transports of connections that were terminated
        self.settings = settings
        # The processes takes the file for the sign that signals are heard.
        self.history = HistoryWriter(settings.directory, name)
        self.rng = random.Random(f"{settings.seed}/{name}")
        # The pool as a user has it: connections that die in it are part of the game.
        self.engine = create_async_engine(settings.url, pool_size=10)
        self.store = settings.store(self.engine)
        self._worked_at: dict[str, float] = {}

    async def run(self) -> None:
        """Work until told to stop."""
        try:
            await self.work()
        except Exception:  # noqa: BLE001 - whatever it is, the checker has to hear of it
            self.history.write(Crashed, traceback.format_exc())
        await self.engine.dispose()
        self.history.close()

    @abstractmethod
    async def work(self) -> None:
        """Do what this process is for, until `stopping`."""

    @property
    def over(self) -> bool:
        """Whether nothing new is to be begun."""
        return self.stopping.is_set() or time.monotonic() > self.settings.until

    async def keep(self, where: str, use: Callable[[], Awaitable[None]], *, until: Callable[[], bool]) -> None:
        """Do `use` again and again, over broken connections; it calls `worked` whenever the server answered."""
        self.worked(where)
        while not until():
            try:
                await use()
            except _MISTAKES:
                raise
            except Exception as error:
                self.history.write(Trouble, where, f"{type(error).__name__}: {error}"[:200])
                if time.monotonic() - self._worked_at[where] > self.reconnect_seconds:
                    raise
                await asyncio.sleep(self.rng.uniform(0.01, 0.1))

    def worked(self, where: str) -> None:
        """Note that the server answered."""
        self._worked_at[where] = time.monotonic()

    async def pause(self, seconds: float) -> None:
        """Wait, unless everything is to be quick now."""
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.calm.wait()

    def _stop(self) -> None:
        self.calm.set()
        self.stopping.set()


def run_process(make: Callable[[Settings, str], SoakProcess], settings: Settings, name: str) -> None:
    """Be that process: the target that the processes starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the soak, which then stops us
    for noisy in ("sqlalchemy.pool", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL + 1)
    asyncio.run(_run(make, settings, name))


async def _run(make: Callable[[Settings, str], SoakProcess], settings: Settings, name: str) -> None:
    await make(settings, name).run()
