"""One turn of a contestant at a backlog: what it took, and what it cost."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.gate import Gate
from benchmarks.measure import PATIENCE, Spread, Usage, spread
from benchmarks.peers.child import Child
from benchmarks.peers.contestants import Entry
from benchmarks.peers.stage import Stage
from benchmarks.results import Value

# How often the database is asked whether all is settled, once all is handled.
_LOOK_EVERY: Final = 0.002
# How often the parent asks several processes for their progress; a single one reports by itself.
_ASK_EVERY: Final = 0.01

CONNECTIONS: Final = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""


@dataclass(frozen=True, slots=True)
class Load:
    """A backlog, how many of its messages are waited for, and how often each fails first."""

    backlog: int
    handled: int
    failures: int = 0
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """How many messages a second were done with, and what each cost."""

    rate: float
    python_us: float
    postgres_us: float | None
    wal: float
    connections: int
    # As the server counts: statements, and which share of all updates touched no index.
    statements: float | None = None
    hot: float | None = None


async def drain(stage: Stage, entry: Entry, load: Load, processes: int = 1) -> Turn:
    """Fill its table anew, and work it off."""
    child = await stage.child(entry)
    await child.ask("create")
    await child.ask("fill", count=load.backlog)
    return await work_off(stage, entry, load, processes)


async def work_off(stage: Stage, entry: Entry, load: Load, processes: int = 1) -> Turn:
    """Let its workers begin all at once, and wait until all that is expected is settled."""
    control, meter, contestant = stage.bench.control, stage.bench.meter, entry.contestant
    children = [await stage.child(entry, number) for number in range(processes)]
    await control.execute(f"VACUUM (ANALYZE) {contestant.table}")
    before_any = await control.fetchval(CONNECTIONS)
    async with Gate(control, contestant.table) as gate:
        await asyncio.gather(*(_start(child, entry, load, processes) for child in children))
        await gate.wait_for(processes)
        spent, sent = await _processor(children), await meter.sent()
        before = await meter.read()
        began = time.monotonic()
    await _until_done(stage, entry, load, children)
    took = time.monotonic() - began
    usage: Usage = await meter.since(before)
    sent_since = None if sent is None else (await meter.sent() or 0) - sent
    spent = await _processor(children) - spent
    handled = await _handled(children)
    connections = await control.fetchval(CONNECTIONS) - before_any
    await asyncio.gather(*(child.ask("stop") for child in children))
    return Turn(
        rate=handled / took,
        python_us=1e6 * spent / handled,
        postgres_us=None if usage.postgres_us is None else usage.postgres_us / handled,
        wal=usage.wal_bytes / handled,
        connections=connections,
        statements=None if sent_since is None else sent_since / handled,
        hot=await meter.hot_ratio(contestant.table),
    )


async def consume(stage: Stage, entry: Entry, count: int) -> Turn:
    """Let messages through that need no database."""
    child = await stage.child(entry)
    await child.ask("start", expected=count, options=dict(entry.options))
    spent, began = child.cpu, time.monotonic()
    took = (await child.ask("wait"))["at"] - began
    spent = child.cpu - spent
    await child.ask("stop")
    return Turn(rate=count / took, python_us=1e6 * spent / count, postgres_us=None, wal=0.0, connections=0)


async def _start(child: Child, entry: Entry, load: Load, processes: int) -> None:
    await child.ask(
        "start",
        # Several share a backlog as it comes, so none of them knows when it is done.
        expected=load.handled if processes == 1 else -1,
        failures=load.failures,
        retry_after=load.retry_after,
        watched=bool(load.failures),
        options=dict(entry.options),
    )


async def _until_done(stage: Stage, entry: Entry, load: Load, children: Sequence[Child]) -> None:
    control, contestant = stage.bench.control, entry.contestant
    if len(children) == 1:
        await children[0].ask("wait")
    else:
        async with asyncio.timeout(PATIENCE):
            while await _handled(children) < load.handled:  # noqa: ASYNC110 - other processes know
                await asyncio.sleep(_ASK_EVERY)
    if load.handled < load.backlog:
        return
    left = f"SELECT EXISTS (SELECT FROM {contestant.table} WHERE {contestant.unsettled})"
    async with asyncio.timeout(PATIENCE):
        while await control.fetchval(left):  # noqa: ASYNC110 - the database knows
            await asyncio.sleep(_LOOK_EVERY)


async def _handled(children: Sequence[Child]) -> int:
    return sum([(await child.ask("look"))["handled"] for child in children])


async def _processor(children: Sequence[Child]) -> float:
    """Tell how many seconds of a processor they have used."""
    for child in children:
        await child.ask("rest")
    return sum(child.cpu for child in children)


def columns(turns: Sequence[Turn]) -> dict[str, Value]:
    """Make the columns of what messages cost."""
    return {
        "Python µs": Spread.of([turn.python_us for turn in turns]),
        "Postgres µs": spread([turn.postgres_us for turn in turns]),
        "WAL B": Spread.of([turn.wal for turn in turns]),
        "statements": spread([turn.statements for turn in turns]),
        "HOT": spread([turn.hot for turn in turns]),
        "connections": Spread.of([turn.connections for turn in turns]),
    }
