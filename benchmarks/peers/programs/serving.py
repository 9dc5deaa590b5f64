"""What the programs of all contestants share: orders come as lines of JSON, and each is answered by one.

It needs nothing but Python, because it runs in environments that hold one contestant each.
"""

import argparse
import asyncio
import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Final, TextIO

PAYLOAD_BYTES: Final = 256
QUEUE: Final = "orders"
# Where the database is: not among the arguments, which anybody on a machine can read.
DSN_VARIABLE: Final = "PEERS_DSN"
# Rows of a backlog are inserted so many at a time.
_FILLED_AT_ONCE: Final = 1_000

Message = dict[str, Any]


def message(number: int) -> Message:
    """Make a message that is so many bytes long as JSON."""
    body = {"id": number, "customer": "Ada Lovelace", "paid": True, "total": 99.5, "note": ""}
    return {**body, "note": "x" * (PAYLOAD_BYTES - len(json.dumps(body)))}


class FailureOnPurpose(Exception):  # noqa: N818 - not an error of the program
    """What a handler raises that is to fail."""


class Notes:
    """What handlers have seen, and which of their calls are to fail."""

    def __init__(self, expected: int, failures: int) -> None:
        self.handled = 0
        self.times: dict[int, list[float]] = defaultdict(list)
        self.expected = expected
        self._failures = failures
        self._complete = asyncio.Event()
        # Set when the parent waits: work that needs no database begins then.
        self.awaited = asyncio.Event()

    def count(self) -> None:
        """Record that a message was handled."""
        self.handled += 1
        if self.handled == self.expected:
            self._complete.set()

    def see(self, number: int) -> None:
        """Record when each message came, and fail if it has not yet failed as often as it should."""
        times = self.times[number]
        times.append(time.monotonic())
        if len(times) <= self._failures:
            raise FailureOnPurpose
        self.count()

    async def complete(self) -> None:
        """Wait for as many messages as are expected."""
        self.awaited.set()
        await self._complete.wait()


@dataclass(frozen=True)
class Work:
    """What a worker is started for."""

    notes: Notes
    # Whether handlers look at what they get; else they do nothing.
    watched: bool = False
    # After how many seconds a message that failed is tried again.
    retry_after: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)


class Publisher(ABC):
    """Publishes messages, from as many clients side by side as it was made for."""

    @abstractmethod
    async def one(self, body: Message) -> None:
        """Publish a message in a transaction of its own, in the quickest way there is."""

    @abstractmethod
    async def many(self, bodies: Sequence[Message]) -> None:
        """Publish messages in one transaction."""

    async def some(self, bodies: Sequence[Message]) -> None:
        """Publish a few messages in one transaction, each by its own call where there is one for each."""
        await self.many(bodies)

    async def bare(self, body: Message) -> None:
        """Publish a message in a transaction of the driver's own connection, if it can be done."""
        await self.one(body)

    @abstractmethod
    async def commit(self, body: Message, delay: float | None) -> float:
        """Publish a message in a transaction, due after so many seconds; returns the moment before its COMMIT."""


class Contestant(ABC):
    """What is measured."""

    #: The package, as it was installed.
    package: str
    #: What is imported of it.
    module: str

    def __init__(self, dsn: str, table: str) -> None:
        self.dsn = dsn
        self.table = table

    @abstractmethod
    async def create(self) -> None:
        """Have empty tables."""

    @abstractmethod
    def working(self, work: Work) -> AbstractAsyncContextManager[None]:
        """Have a worker that runs."""

    @abstractmethod
    def publishing(self, clients: int) -> AbstractAsyncContextManager[Publisher]:
        """Have something that publishes, for so many clients."""


class Server:
    """Carries out orders, one after the other; what it opened stays open until the order to close it."""

    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self._notes: Notes | None = None
        self._worker = AsyncExitStack()
        self._publisher: Publisher | None = None
        self._clients = AsyncExitStack()

    async def create(self) -> None:
        """Have empty tables."""
        await self._contestant.create()

    async def fill(self, count: int) -> None:
        """Have a backlog."""
        async with self._contestant.publishing(1) as publisher:
            for start in range(0, count, _FILLED_AT_ONCE):
                await publisher.many([message(each) for each in range(start, min(start + _FILLED_AT_ONCE, count))])

    async def start(
        self,
        expected: int,
        failures: int = 0,
        retry_after: float = 0.0,
        options: dict[str, Any] | None = None,
        *,
        watched: bool = False,
    ) -> None:
        """Start a worker."""
        self._notes = Notes(expected, failures)
        work = Work(self._notes, watched, retry_after, options or {})
        await self._worker.enter_async_context(self._contestant.working(work))

    async def wait(self) -> dict[str, Any]:
        """Wait until the worker has handled what was expected."""
        assert self._notes is not None
        await self._notes.complete()
        return {"at": time.monotonic()}

    async def look(self) -> dict[str, Any]:
        """Tell how far the worker is."""
        assert self._notes is not None
        return {"handled": self._notes.handled}

    async def times(self) -> dict[str, Any]:
        """Tell when which message came, each time it did."""
        assert self._notes is not None
        return {"times": self._notes.times}

    async def stop(self) -> None:
        """Stop the worker."""
        await self._worker.aclose()

    async def open(self, clients: int) -> None:
        """Connect clients that publish."""
        self._publisher = await self._clients.enter_async_context(self._contestant.publishing(clients))

    async def publish(self, count: int, clients: int = 1, batch: int | None = None, way: str = "") -> dict[str, Any]:
        """Publish so many messages, as quickly as can be: in the `way` that a method of the publisher has."""
        publisher, bodies = self._publisher, [message(number) for number in range(count)]
        assert publisher is not None
        waiting = iter(bodies)
        one, many = getattr(publisher, way or "one"), getattr(publisher, way or "many")

        async def each() -> None:
            for body in waiting:
                await one(body)

        began = time.monotonic()
        if batch is None:
            await asyncio.gather(*(each() for _ in range(clients)))
        else:
            for start in range(0, count, batch):
                await many(bodies[start : start + batch])
        return {"seconds": time.monotonic() - began}

    async def commit(self, number: int, delay: float | None = None) -> dict[str, Any]:
        """Publish one message; `began` is before its transaction, which is when its delay begins at the earliest."""
        assert self._publisher is not None
        began = time.monotonic()
        return {"began": began, "at": await self._publisher.commit(message(number), delay)}

    async def close(self) -> None:
        """Disconnect the clients."""
        await self._clients.aclose()
        self._publisher = None

    async def rest(self) -> None:
        """Do nothing: every answer contains the processor time."""

    async def serve(self, answers: TextIO) -> None:
        """Carry out orders until there are no more."""
        async for line in _lines():
            order = json.loads(line)
            act: Callable[..., Coroutine[Any, Any, dict[str, Any] | None]] = getattr(self, order.pop("do"))
            try:
                answer = await act(**order) or {}
            except Exception:  # noqa: BLE001 - the answer has the traceback
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps({**answer, "cpu": time.process_time()}) + "\n")
            answers.flush()
        await self._worker.aclose()
        await self._clients.aclose()


async def _lines() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line


@asynccontextmanager
async def task_of(coroutine: Coroutine[Any, Any, Any], end: Callable[[], object]) -> AsyncIterator[None]:
    """Run a worker that is a coroutine, until `end` is called."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    try:
        yield
    finally:
        end()
        await task


def _version(package: str) -> str | None:
    """Tell which version is installed; none is where a package lies in a directory."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def serve(kind: type[Contestant]) -> None:
    """Be the program of a contestant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", required=True)
    parser.add_argument("--uvloop", action="store_true")
    arguments = parser.parse_args()
    # Whatever a library prints must not be taken for an answer.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        spec = find_spec(kind.module)
        assert spec is not None
        hello = {
            "version": _version(kind.package),
            "origin": spec.origin,
            "uvloop": find_spec("uvloop") is not None,
        }
        answers.write(json.dumps(hello) + "\n")
        answers.flush()
        server = Server(kind(os.environ[DSN_VARIABLE], arguments.table))
        if arguments.uvloop:
            import uvloop  # noqa: PLC0415 - not everybody has it

            uvloop.run(server.serve(answers))
        else:
            asyncio.run(server.serve(answers))
