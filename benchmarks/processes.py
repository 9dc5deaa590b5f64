"""Processes that each run a broker on the same table, until they are stopped."""

import asyncio
import multiprocessing
import multiprocessing.process
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.measure import PATIENCE
from benchmarks.outbox import QUEUE
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.storage.ordering import Ordering

_STOP: Final = "stop"


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is asked for: a broker on this table, and how it shares keys with the others."""

    url: str
    table: str
    ordering: Ordering | None


class Processes(AbstractContextManager["Processes"]):
    """Some processes, started once, because what they import takes longer than what they are measured at."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        # What each has handled. Written by one, read by us: nobody needs a lock for that.
        self._handled: Any = context.RawArray("q", count)
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(number, theirs, self._handled), daemon=True)
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()  # that is how they learn that there is no more to do
            process.join(PATIENCE if error is None else 0)
            if process.is_alive():
                process.kill()

    @property
    def handled(self) -> int:
        """How many messages they have handled since they were given a job."""
        return sum(self._handled)

    async def start(self, jobs: Sequence[Job]) -> None:
        """Give the first ones a job each, and wait until their brokers have started."""
        self._handled[:] = [0] * len(self._handled)
        for number, job in enumerate(jobs):
            self._pipes[number].send(job)
        for number in range(len(jobs)):
            await self._answer(number)

    async def stop(self, count: int) -> float:
        """Let the first ones stop; returns the processor time that they have used since they started, in µs."""
        for number in range(count):
            self._pipes[number].send(_STOP)
        return sum([await self._answer(number) for number in range(count)])

    async def _answer(self, number: int) -> float:
        if not await asyncio.to_thread(self._pipes[number].poll, PATIENCE):
            raise TimeoutError(f"Process {number} has not answered for {PATIENCE:.0f} s.")
        answer: float = self._pipes[number].recv()
        return answer


def _serve(number: int, pipe: Connection, handled: Any) -> None:
    """Do jobs until there are no more."""
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        asyncio.run(_work(job, number, pipe, handled))


async def _work(job: Job, number: int, pipe: Connection, handled: Any) -> None:
    engine = create_async_engine(job.url)
    broker = OutboxBroker(engine, outbox_table=make_outbox_table(MetaData(), job.table), logger=None)
    options: dict[str, Any] = {} if job.ordering is None else {"ordering": job.ordering}

    @broker.subscriber(QUEUE, **options)
    async def handle(_: dict[str, Any]) -> None:
        handled[number] += 1

    await broker.start()
    before = time.process_time()
    pipe.send(0.0)
    await asyncio.to_thread(pipe.recv)
    spent = time.process_time() - before
    await broker.stop()
    await engine.dispose()
    pipe.send(1e6 * spent)
