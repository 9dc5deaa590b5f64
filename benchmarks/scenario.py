"""What every scenario is given, and the shape it has."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeVar

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.measure import Meter, interleave
from benchmarks.peers.child import Programs
from benchmarks.results import Result
from faststream_outbox.embedded import Database

Scale = Literal["tiny", "quick", "full"]

T = TypeVar("T")


@dataclass(slots=True)
class Bench:
    """The surroundings of a run: a database of its own, the drivers to try, how much to do and whom to tell."""

    database: Database
    control: Any  # a bare asyncpg connection to that database
    scale: Scale = "quick"
    drivers: tuple[str, ...] = ("asyncpg", "psycopg")
    seed: int = 1
    seconds: float | None = None
    say: Callable[[str], None] = lambda _: None
    # Those of the peers; the creator of a bench ends them.
    programs: Programs = field(default_factory=Programs)
    meter: Meter = field(init=False)
    payload: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.meter = Meter(self.control)
        self.payload = self.rng("payload").randbytes(256)

    def rng(self, purpose: str) -> Random:
        """Return random numbers that depend on the seed and on what they are for, nothing else."""
        return Random(f"{self.seed} {purpose}")  # noqa: S311 - the order of measurements is no secret

    async def interleave(
        self, what: str, cases: Mapping[str, Callable[[], Awaitable[T]]], *, rounds: int, warmup: int = 0
    ) -> dict[str, list[T]]:
        """Let the cases take turns and tell how far they are; `warmup` rounds are not kept."""

        def tell(number: int) -> None:
            self.say(f"{what}, round {number} of {rounds}" if number > 0 else f"{what}, warming up")

        return await interleave(cases, rounds=rounds, warmup=warmup, rng=self.rng(what), tell=tell)

    @asynccontextmanager
    async def engine(self, driver: str, connections: int = 4) -> AsyncIterator[AsyncEngine]:
        """Open an engine for a driver, its statements counted; its connections are closed at the end."""
        engine = create_async_engine(self.database.url(driver), pool_size=connections, max_overflow=0)
        for name in ("begin", "before_cursor_execute", "commit"):
            event.listen(engine.sync_engine, name, self._count)
        try:
            yield engine
        finally:
            await engine.dispose()

    def _count(self, *_: object) -> None:
        self.meter.statements += 1


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question to the benchmark; a module each, listed in `benchmarks.scenarios`."""

    name: str
    summary: str
    run: Callable[[Bench], Awaitable[list[Result]]]
