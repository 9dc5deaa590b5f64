"""Brokers in 1 and 4 processes that drain rows with keys, beside rows without, from small backlogs and large ones."""

import asyncio
import json
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from benchmarks.aims import ORDERED, ORDERED_BACKLOG, ORDERED_FLAT
from benchmarks.batch import order
from benchmarks.gate import Gate
from benchmarks.keyed import ORDERINGS, SHARDS, rows_with_keys, shards_of
from benchmarks.measure import PATIENCE, Spread, Usage, ratios, spread
from benchmarks.outbox import QUEUE, Outbox
from benchmarks.processes import Job, Processes
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox.storage.ordering import HashShards, Ordering

NO_KEYS: Final = "no keys"
# From so many rows on a backlog is a large one.
LARGE: Final = 1_000_000
# How often it is looked whether all is done: seldom enough that nobody notices.
_LOOK_EVERY: Final = 0.002
# How long what was handled last may take to be settled.
_SETTLED_IN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is drained by how many processes, in how many rounds, and the same of a large backlog; and how."""

    messages: int
    processes: tuple[int, ...]
    rounds: int
    backlog: int
    of_backlog: int
    rounds_of_backlog: int
    processes_of_backlog: tuple[int, ...] = (1, 4)
    warmup: int = 1
    names: tuple[str, ...] = (NO_KEYS, *ORDERINGS)


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(
        300, (2,), 1, backlog=1_000, of_backlog=200, rounds_of_backlog=1, processes_of_backlog=(2,), warmup=0
    ),
    # Of both backlogs as much, so that they take turns with each other; and what a subscriber does by default.
    "quick": Sizes(10_000, (1, 4), 3, 1_000_000, 10_000, 3, processes_of_backlog=(1,), names=(NO_KEYS, "HeadLease")),
    "full": Sizes(10_000, (1, 4), 7, backlog=1_000_000, of_backlog=20_000, rounds_of_backlog=5),
}


@dataclass(frozen=True, slots=True)
class Drained:
    """How many messages a second were handled, and what all processes used up for each."""

    rate: float
    python_us: float
    usage: Usage
    handled: int

    @property
    def postgres_us(self) -> float | None:
        """What a message cost the server."""
        spent = self.usage.postgres_us
        return None if spent is None else spent / self.handled


class Backlog:
    """A table that is as full as it was at the beginning of each drain."""

    def __init__(self, outbox: Outbox, *, keyed: bool, rows: int) -> None:
        self.outbox = outbox
        self._keyed = keyed
        self._rows = rows
        self._missing = rows
        self._loads = 0

    async def create(self) -> None:
        """Create it anew, and fill it."""
        await self.outbox.create()
        await self.refill()
        await self.outbox.vacuum()

    async def refill(self) -> None:
        """Fill it up, with keys that have not been there."""
        columns, values = rows_with_keys(str(self._loads)) if self._keyed else ("queue", f"'{QUEUE}'")
        self._loads += 1
        await self.outbox.load(self._missing, columns, values, payload=json.dumps(order(0)).encode())
        self._missing = 0

    async def drain(self, processes: Processes, jobs: Sequence[Job], count: int) -> Drained:
        """Let processes handle so many messages, all of them beginning at once."""
        bench, name = self.outbox.bench, self.outbox.name
        await self.refill()
        async with Gate(bench.control, name) as gate:
            await processes.start(jobs)
            await gate.wait_for(len(jobs))
            before = await bench.meter.read()
            began = time.perf_counter()
        async with asyncio.timeout(PATIENCE):
            while (handled := processes.handled) < count:  # noqa: ASYNC110 - other processes know
                await asyncio.sleep(_LOOK_EVERY)
        took = time.perf_counter() - began
        await asyncio.sleep(_SETTLED_IN)
        usage = await bench.meter.since(before)
        in_all = processes.handled
        python_us = await processes.stop(len(jobs))
        self._missing = processes.handled
        if self._rows == count and (left := await bench.control.fetchval(f"SELECT count(*) FROM {name}")):
            raise AssertionError(f"{left} rows were not settled.")
        return Drained(handled / took, python_us / in_all, usage, in_all)


def orderings(name: str, processes: int) -> list[Ordering | None]:
    """Tell how each process shares keys: with shards of its own, as they would have shared them out."""
    ordering = ORDERINGS.get(name)
    if not isinstance(ordering, HashShards):
        return [ordering] * processes
    return [HashShards(count=SHARDS, shards=shards_of(each, processes)) for each in range(processes)]


@dataclass(frozen=True, slots=True)
class Case:
    """One strategy, or no keys at all, by so many processes, on a table of so many rows."""

    name: str
    processes: int
    rows: int

    def __str__(self) -> str:
        processes = f"{self.processes} process{'es' * (self.processes > 1)}"
        return f"{self.name}, {processes}, {self.rows:,} rows"


async def run(bench: Bench) -> list[Result]:
    """Drain small backlogs through each driver, and parts of a large one through the first."""
    sizes = SIZES[bench.scale]
    results = []
    with Processes(max(sizes.processes)) as processes:
        # Where as much is drained of both, the small backlog has its turns beside the large one.
        for driver in bench.drivers if sizes.messages != sizes.of_backlog else ():
            contest = Contest(bench, driver, processes, sizes.messages)
            results.append(await contest.measure((sizes.messages,), sizes.rounds, warmup=sizes.warmup))
        contest = Contest(bench, bench.drivers[0], processes, sizes.of_backlog)
        results.append(await contest.measure((sizes.of_backlog, sizes.backlog), sizes.rounds_of_backlog))
    return results


class Contest:
    """Drains of so many messages through one driver, by each strategy."""

    def __init__(self, bench: Bench, driver: str, processes: Processes, messages: int) -> None:
        self._bench = bench
        self._driver = driver
        self._processes = processes
        self._messages = messages

    async def measure(self, backlogs: tuple[int, ...], rounds: int, *, warmup: int = 0) -> Result:
        """Let strategies, processes and backlogs take turns."""
        sizes = SIZES[self._bench.scale]
        cases = [
            Case(name, of, rows)
            for rows in backlogs
            for of in (sizes.processes_of_backlog if rows == sizes.backlog else sizes.processes)
            for name in sizes.names
        ]
        async with self._bench.engine("asyncpg") as engine:
            tables = {
                (rows, keyed): Backlog(Outbox(self._bench, engine, f"ordered_{rows}_{kind}"), keyed=keyed, rows=rows)
                for rows in backlogs
                for kind, keyed in (("plain", False), ("keys", True))
            }
            self._bench.say(f"loading {len(tables)} tables")
            async with asyncio.TaskGroup() as tasks:
                for table in tables.values():
                    tasks.create_task(table.create())
            turns = {str(case): self._turn(case, tables[case.rows, case.name != NO_KEYS]) for case in cases}
            what = f"{self._driver}, {self._messages:,} of {backlogs[-1]:,}"
            measured = await self._bench.interleave(what, turns, rounds=rounds, warmup=warmup)
            for table in tables.values():
                await table.outbox.drop()
        return self._result({case: measured[str(case)] for case in cases}, backlogs)

    def _turn(self, case: Case, table: Backlog) -> "partial[Coroutine[Any, Any, Drained]]":
        url = self._bench.database.url(self._driver)
        jobs = [Job(url, table.outbox.name, ordering) for ordering in orderings(case.name, case.processes)]
        return partial(table.drain, self._processes, jobs, self._messages)

    def _result(self, measured: dict[Case, list[Drained]], backlogs: tuple[int, ...]) -> Result:
        lines: Lines = {}
        targets = []
        rates = {case: [drained.rate for drained in turns] for case, turns in measured.items()}
        small = backlogs[0]
        for case, turns in measured.items():
            to_plain = ratios(rates[case], rates[replace(case, name=NO_KEYS)])
            to_small = ratios(rates[case], rates[replace(case, rows=small)])
            lines[str(case)] = {
                "msg/s": Spread.of(rates[case]),
                f"to {NO_KEYS}": to_plain,
                **({f"to {small:,} rows": to_small} if len(backlogs) > 1 else {}),
                "Python µs": Spread.of([drained.python_us for drained in turns]),
                "Postgres µs": spread([drained.postgres_us for drained in turns]),
                "WAL B": Spread.of([drained.usage.wal_bytes / drained.handled for drained in turns]),
            }
            if case.name != NO_KEYS and to_plain is not None:
                aim = ORDERED_BACKLOG if case.rows >= LARGE else ORDERED
                targets.append(aim.target(f"{self._driver}, {case}, to {NO_KEYS}", to_plain.median))
            if case.name != NO_KEYS and case.rows != small and to_small is not None:
                targets.append(ORDERED_FLAT.target(f"{self._driver}, {case}, to {small:,}", to_small.median))
        note = (
            f"{self._messages:,} messages, through handlers that do nothing, as a subscriber is by default, without a "
            "log; with keys there are 1 to 10 of each. The brokers run before they are measured: a lock on the table "
            "holds them back, and its release is the beginning. With HashShards each process has its share of the "
            "shards. Ratios are to as many processes, from a backlog as large, without keys."
        )
        return Result(f"draining {self._messages:,} of {backlogs[-1]:,} rows, {self._driver}", lines, note, targets)


SCENARIO: Final = Scenario("ordered", "brokers in 1 and 4 processes drain rows with keys, beside rows without", run)
