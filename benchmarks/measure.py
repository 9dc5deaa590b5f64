"""What a stretch of work cost: time, processor time on both sides, write-ahead log, statements."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Self, TypeVar

import asyncpg

T = TypeVar("T")

# Longer than any step takes on the slowest machine; after it a wait fails.
PATIENCE: Final = 120.0

_COUNTERS: Final = """
SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
       ARRAY(SELECT a.pid FROM pg_stat_activity a
              WHERE a.datname = current_database() AND a.backend_type = 'client backend'
                AND a.pid <> pg_backend_pid())"""
_HOT: Final = """
SELECT n_tup_hot_upd::float8 / nullif(n_tup_upd, 0) FROM pg_stat_user_tables WHERE relid = $1::text::regclass"""
# Our own looking around is not counted.
_COUNT_OTHERS: Final = "CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SET pg_stat_statements.track = none"
_SENT: Final = """
SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements(false)
 WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""

# How long server processes may take to end after their connections were closed.
_CLOSING_CHECKS: Final = 100
_CLOSING_CHECK_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of several measurements; half of them lie between `low` and `high`."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Sum up at least one measurement."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


def spread(values: Sequence[float | None]) -> Spread | None:
    """Sum up what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return Spread.of(known) if known else None


def ratios(values: Sequence[float | None], baseline: Sequence[float | None]) -> Spread | None:
    """Compare two cases round by round: what slowed a whole round cancels out."""
    pairs = zip(values, baseline, strict=True)
    return spread([None if value is None or not base else value / base for value, base in pairs])


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used up between two readings; `postgres_us` is None where the server's processes are out of sight."""

    seconds: float = 0.0
    python_us: float = 0.0
    postgres_us: float | None = 0.0
    wal_bytes: int = 0
    statements: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        mine, theirs = self.postgres_us, other.postgres_us
        return Usage(
            self.seconds + other.seconds,
            self.python_us + other.python_us,
            None if mine is None or theirs is None else mine + theirs,
            self.wal_bytes + other.wal_bytes,
            self.statements + other.statements,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """Where every counter stood at one moment."""

    at: float
    python: float
    postgres_ns: Mapping[int, int]
    wal: int
    statements: int


class Meter:
    """Reads the counters of this process and of the server's processes that serve the benchmark's database.

    Example:
        before = await meter.read()
        ...
        print(await meter.since(before))

    """

    def __init__(self, control: Any) -> None:
        self._control = control  # a bare asyncpg connection, beside those that are measured
        self.statements = 0  # the sender of a statement adds it here
        self._server_counts: bool | None = None

    async def read(self) -> Reading:
        """Read now; the clocks come last, so that reading is not measured."""
        wal, pids = await self._control.fetchrow(_COUNTERS)
        postgres_ns = {pid: spent for pid in pids if (spent := backend_ns(pid)) is not None}
        return Reading(time.perf_counter(), time.process_time(), postgres_ns, wal, self.statements)

    async def since(self, before: Reading) -> Usage:
        """Tell what was used since a reading; connections closed in between are missing from Postgres' share."""
        at, python, statements = time.perf_counter(), time.process_time(), self.statements
        after = await self.read()
        seen = [spent - before.postgres_ns.get(pid, 0) for pid, spent in after.postgres_ns.items()]
        return Usage(
            seconds=at - before.at,
            python_us=(python - before.python) * 1e6,
            postgres_us=sum(seen) / 1e3 if seen else None,
            wal_bytes=after.wal - before.wal,
            statements=statements - before.statements,
        )

    async def sent(self) -> int | None:
        """Tell how many statements other processes have sent, as the server counts them; None where it does not."""
        if self._server_counts is None:
            try:
                async with self._control.transaction():
                    await self._control.execute(_COUNT_OTHERS)
                    self._server_counts = await self._control.fetchval(_SENT) is not None
            except asyncpg.PostgresError:  # not loaded, or not for us to use
                self._server_counts = False
        sent: int | None = await self._control.fetchval(_SENT) if self._server_counts else None
        return sent

    async def hot_ratio(self, table: str) -> float | None:
        """Tell which share of a table's updates touched no index, once all connections but our own are closed."""
        for _ in range(_CLOSING_CHECKS):
            _, pids = await self._control.fetchrow(_COUNTERS)
            if not pids:  # the last thing a server process does is to report what it did
                break
            await asyncio.sleep(_CLOSING_CHECK_SECONDS)
        ratio: float | None = await self._control.fetchval(_HOT, table)
        return ratio


def backend_ns(pid: int) -> int | None:
    """Return the processor time of one of this machine's Postgres processes, in nanoseconds; None where unknown."""
    process = Path("/proc") / str(pid)
    try:
        # The server may be elsewhere, and the number may belong to another process here.
        if not (process / "comm").read_text().startswith("postgres"):
            return None
        return int((process / "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


async def interleave(
    cases: Mapping[str, Callable[[], Awaitable[T]]],
    *,
    rounds: int,
    warmup: int,
    rng: Random,
    tell: Callable[[int], None],
) -> dict[str, list[T]]:
    """Let the cases take turns, in another order each round, so that a busy minute meets them all alike."""
    measured: dict[str, list[T]] = {name: [] for name in cases}
    order = list(cases)
    for number in range(1 - warmup, rounds + 1):
        tell(number)
        rng.shuffle(order)
        for name in order:
            result = await cases[name]()
            if number > 0:
                measured[name].append(result)
    return measured
