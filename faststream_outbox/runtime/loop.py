"""The base class of every background part: started once, stopped once, one step repeated in between."""

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from typing import Final

from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage.errors import advice

# A handler may catch its cancellation and go on, so it is cancelled again; after the last time its task is left behind.
_CANCELLATIONS: Final = 3
_BETWEEN_CANCELLATIONS: Final = 5.0
_BEFORE_RESTART: Final = 0.1
# The first retry comes faster than a person notices, and the longest wait ends soon after the server is back.
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 1.0


class Backoff:
    """The waits of one loop after failures: each twice as long as the one before, up to `longest` seconds."""

    def __init__(self, longest: float = _LONGEST_WAIT) -> None:
        self._longest = longest
        self._next = _FIRST_WAIT

    def reset(self) -> None:
        """Start from the shortest wait again, after a success."""
        self._next = _FIRST_WAIT

    async def wait(self) -> None:
        """Wait, and double the next wait."""
        seconds, self._next = self._next, min(self._next * 2, self._longest)
        # Half fixed, half random: the subscribers of many processes should not all come back at the same moment.
        await asyncio.sleep(seconds * (0.5 + random.random() / 2))  # noqa: S311 - not for security


class Loop(ABC):
    """Repeats `step` until it is stopped; a step that fails is reported and tried again after a wait."""

    # The event under which a failing step is logged.
    failure_event: str
    # What a step does, for the text of log records.
    task: str

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._backoff = Backoff()
        self._failures = 0
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to repeat the step."""
        self._stopping = False
        self._spawn()

    def _spawn(self) -> None:
        if not self._stopping:
            self._task = asyncio.create_task(self._run(), name=type(self).__name__)
            self._task.add_done_callback(self._restart)

    def _restart(self, task: "asyncio.Task[None]") -> None:
        """Start again if the task ended without `stop`: a handler may have cancelled the task that it ran in.

        Not at once: if the event loop is shutting down and has cancelled every task, the delay keeps this one ended.
        """
        if not self._stopping:
            task.get_loop().call_later(_BEFORE_RESTART, self._spawn)

    async def stop(self) -> None:
        """Stop at once, even in the middle of a step; a second call waits for the same end."""
        task, asked, self._stopping = self._task, self._stopping, True
        if task is None:
            return
        for attempt in range(_CANCELLATIONS):
            if attempt or not asked:
                task.cancel()
            done, _pending = await asyncio.wait([task], timeout=_BETWEEN_CANCELLATIONS)
            if done:
                return
        message = f"{type(self).__name__} did not end after {_CANCELLATIONS} cancellations; its task is left running."
        self._monitor.report("stop_failed", message, level=logging.ERROR)

    @property
    def alive(self) -> bool:
        """Whether the loop is running."""
        return self._task is not None and not self._task.done()

    @abstractmethod
    async def step(self) -> None:
        """Do one round of work; wait for work first if there is none."""

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this runs in a task
        # A step may swallow its cancellation, as a user's handler may, and must then be the last one. `cancelling()`
        # counts cancellations of this task only, not of something that the step awaited.
        while not (self._stopping or task.cancelling()):
            try:
                await self.step()
            except asyncio.CancelledError as leaked:
                if self._stopping or task.cancelling():
                    raise
                # Something that the step awaited was cancelled: an error like any other.
                await self._recover(leaked)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - no error may end the loop
                await self._recover(error)
            else:
                self._succeed()

    async def _recover(self, error: BaseException) -> None:
        self._failures += 1
        # Of failures in a row the 1st, 2nd, 4th, 8th ... is logged: few lines per outage. The first has its traceback,
        # unless advice says what to do: then the cause is known.
        if self._failures & (self._failures - 1) == 0:
            times, advised = "" if self._failures == 1 else f" {self._failures} times in a row", advice(error)
            message = f"{self.task} failed{times}, and is tried again: {self._monitor.describe(error)}.{advised}"
            shown = error if self._failures == 1 and not advised else None
            self._monitor.report(self.failure_event, message, level=logging.ERROR, error=shown)
        await self._backoff.wait()

    def _succeed(self) -> None:
        if not self._failures:
            return
        self._backoff.reset()
        if self._failures > 1:
            message = f"{self.task} works again, after {self._failures} failures."
            self._monitor.report("recovered", message, level=logging.INFO)
        self._failures = 0


async def let_others_run() -> None:
    """Give the event loop two rounds: a task that an event wakes in the first round acts in the second."""
    for _ in range(2):
        await asyncio.sleep(0)
