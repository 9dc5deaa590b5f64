"""The shape that every background part has: started once, stopped once, one loop in between."""

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Final

from faststream_outbox.runtime.backoff import Backoff
from faststream_outbox.runtime.events import Monitor, describe
from faststream_outbox.storage.errors import advice

# A handler may catch its cancellation and go on, so it gets another; whoever is deaf to all of them is left behind.
_CANCELLATIONS: Final = 3
_BETWEEN_CANCELLATIONS: Final = 5.0
_BEFORE_REVIVAL: Final = 0.1


class Loop(ABC):
    """Repeats `step` until it is stopped; a step that fails is reported, and tried again after a moment."""

    # The event under which a failing step is reported.
    failure_event: str
    # What a step does, for a person to read.
    task: str

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._backoff = Backoff()
        self._failures = 0
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to repeat."""
        self._stopping = False
        self._spawn()

    def _spawn(self) -> None:
        if not self._stopping:
            self._task = asyncio.create_task(self._run(), name=type(self).__name__)
            self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Begin anew if nobody asked for the end: a handler may have cancelled the task that it ran in.

        Not at once: should the event loop be ending, and have cancelled everything, then there is no later.
        """
        if not self._stopping:
            task.get_loop().call_later(_BEFORE_REVIVAL, self._spawn)

    async def stop(self) -> None:
        """Stop at once, in the middle of a step if need be; asked twice, it waits for the same end."""
        task, asked, self._stopping = self._task, self._stopping, True
        if task is None:
            return
        for attempt in range(_CANCELLATIONS):
            if attempt or not asked:
                task.cancel()
            done, _pending = await asyncio.wait([task], timeout=_BETWEEN_CANCELLATIONS)
            if done:
                return
        message = f"{type(self).__name__} does not end, although it was cancelled {_CANCELLATIONS} times: it is left."
        self._monitor.report("stop_failed", message, level=logging.ERROR)

    @property
    def alive(self) -> bool:
        """Whether the loop is running."""
        return self._task is not None and not self._task.done()

    @abstractmethod
    async def step(self) -> None:
        """Do one round of work, waiting for it first if there is none."""

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - it is what runs this
        # A step may swallow its cancellation, as a handler of a user's does; it is the last one all the same. What is
        # asked is whether somebody wants this task to end, not something that it awaited.
        while not (self._stopping or task.cancelling()):
            try:
                await self.step()
            except asyncio.CancelledError as leaked:
                if self._stopping or task.cancelling():
                    raise
                # Somebody else's cancellation, leaking through what we awaited, is an error like any other.
                await self._recover(leaked)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it is, the loop goes on
                await self._recover(error)
            else:
                self._succeed()

    async def _recover(self, error: BaseException) -> None:
        self._failures += 1
        # All that is to be known the first time, then a line at ever longer intervals: an outage is no news for long.
        if self._failures & (self._failures - 1) == 0:
            times = "" if self._failures == 1 else f" {self._failures} times in a row"
            message = f"{self.task} failed{times}, and is tried again: {describe(error)}.{advice(error)}"
            first = error if self._failures == 1 else None
            self._monitor.report(self.failure_event, message, level=logging.ERROR, error=first)
        await self._backoff.wait()

    def _succeed(self) -> None:
        if not self._failures:
            return
        self._backoff.reset()
        if self._failures > 1:
            message = f"{self.task} works again, after {self._failures} failures."
            self._monitor.report("recovered", message, level=logging.INFO)
        self._failures = 0


async def give_way() -> None:
    """Let the event loop go round twice: whom an event wakes in the first round sends a statement in the second."""
    for _ in range(2):
        await asyncio.sleep(0)
