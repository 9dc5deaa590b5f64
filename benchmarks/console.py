"""How long a page of the console takes over a large table, as the browser gets it: read, rendered and sent."""

import time
from functools import partial
from typing import Final

import httpx

from benchmarks.measure import Spread
from benchmarks.operations import KEYED_QUEUE, MOST_SECONDS, SIZES, fill
from benchmarks.outbox import QUEUE, Outbox
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scenario
from faststream_outbox.console import make_console
from faststream_outbox.operations import OutboxOperations

_PAGES: Final = {
    "overview": "/",
    "queue": f"/queue?name={QUEUE}",
    "queue, a state": f"/queue?name={QUEUE}&state=ready",
    "queue, a header that none has": f"/queue?name={QUEUE}&header=tenant%3Dnone",
    "keys": "/keys",
    "key": f"/key?queue={KEYED_QUEUE}&key=customer+7",
    "dead letters": "/dead-letters",
    "dead letters of a queue": f"/dead-letters/rows?queue={QUEUE}",
    "search": "/search?q=7",
    "timers": "/timers",
    "nodes": "/nodes",
}


async def run(bench: Bench) -> list[Result]:
    """Fill a table, and let the pages take turns."""
    rows, rounds = SIZES[bench.scale]
    async with bench.engine("asyncpg") as engine:
        outbox = Outbox(bench, engine, "console_large")
        bench.say("console, filling the table")
        await fill(outbox, rows // 2, rows // 10)
        transport = httpx.ASGITransport(make_console(OutboxOperations.on_store(outbox.store)), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            cases = {name: partial(_time, client, path) for name, path in _PAGES.items()}
            measured = await bench.interleave("console", cases, rounds=rounds, warmup=2)
        await outbox.drop()
    spreads = {name: Spread.of(each) for name, each in measured.items()}
    lines: Lines = {name: {"ms": Spread.of([1000 * each for each in measured[name]])} for name in _PAGES}
    targets = [Target(f"{name}: seconds", spread.median, at_most=MOST_SECONDS) for name, spread in spreads.items()]
    note = f"An outbox with {rows:,} rows and {rows // 10:,} dead letters. A page is read, rendered and sent."
    return [Result("pages of the console", lines, note, targets)]


async def _time(client: httpx.AsyncClient, path: str) -> float:
    began = time.perf_counter()
    response = await client.get(path)
    seconds = time.perf_counter() - began
    response.raise_for_status()
    return seconds


SCENARIO: Final = Scenario("console", "how long a page of the console takes over a large table", run)
