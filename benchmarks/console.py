"""How long a page of the console takes over a large table: as a request, and in a browser until it has loaded."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import httpx
import uvicorn
from playwright.async_api import Page, ViewportSize, async_playwright
from starlette.types import ASGIApp

from benchmarks.measure import PATIENCE, Spread
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
    "queue, a key": f"/queue?name={KEYED_QUEUE}&key=customer+7",
    "message": "/messages/1000",
    "keys": "/keys",
    "keys that are parked": "/keys?state=parked",
    "key": f"/key?queue={KEYED_QUEUE}&key=customer+7",
    "dead letters": "/dead-letters",
    "dead letters of a queue": f"/dead-letters/rows?queue={QUEUE}",
    "dead letter": "/dead-letters/1000",
    "search": "/search?q=7",
    "timers": "/timers",
    "nodes": "/nodes",
}
# As the tests have it.
_SCREEN: Final = ViewportSize(width=1280, height=800)

Read = Callable[[str], Awaitable[float]]


async def run(bench: Bench) -> list[Result]:
    """Fill a table, and let the pages take turns."""
    rows, rounds = SIZES[bench.scale]
    async with bench.engine("asyncpg") as engine:
        outbox = Outbox(bench, engine, "console_large")
        bench.say("console, filling the table")
        await fill(outbox, rows // 2, rows // 10)
        async with _readers(make_console(OutboxOperations.on_store(outbox.store))) as readers:
            cases = {(way, name): partial(read, path) for way, read in readers.items() for name, path in _PAGES.items()}
            named = {f"{way}: {name}": case for (way, name), case in cases.items()}
            measured = await bench.interleave("console", named, rounds=rounds, warmup=2)
        await outbox.drop()
    spreads = {(way, name): Spread.of([1000 * each for each in measured[f"{way}: {name}"]]) for way, name in cases}
    lines: Lines = {name: {f"{way}, ms": spreads[way, name] for way in readers} for name in _PAGES}
    targets = [
        Target(f"{name}, {way}: seconds", spread.median / 1000, at_most=MOST_SECONDS)
        for (way, name), spread in spreads.items()
    ]
    note = (
        f"An outbox with {rows:,} rows and {rows // 10:,} dead letters. A request: the page is read, rendered and "
        f"sent. {_browser_note(readers)}"
    )
    return [Result("pages of the console", lines, note, targets)]


def _browser_note(readers: dict[str, Read]) -> str:
    if len(readers) == 1:
        return "Chromium is not installed, so left out."
    return "Chromium: from the start of the navigation to the load event, over a socket of this machine."


@asynccontextmanager
async def _readers(app: ASGIApp) -> AsyncIterator[dict[str, Read]]:
    """Give the ways to read a page, each of which returns the seconds that it took."""
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        readers: dict[str, Read] = {"a request": partial(_request, client)}
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        if chromium is None:
            yield readers
            return
        async with _serving(app) as address, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            try:
                page = await browser.new_page(base_url=address, viewport=_SCREEN)
                yield readers | {"Chromium": partial(_navigate, page)}
            finally:
                await browser.close()


@asynccontextmanager
async def _serving(app: ASGIApp) -> AsyncIterator[str]:
    """Serve the console on a port of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="error", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(PATIENCE):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def _request(client: httpx.AsyncClient, path: str) -> float:
    began = time.perf_counter()
    response = await client.get(path)
    seconds = time.perf_counter() - began
    response.raise_for_status()
    return seconds


async def _navigate(page: Page, path: str) -> float:
    """Open a page in a browser, and return the seconds until its load event, as the browser has measured them."""
    response = await page.goto(path, wait_until="load")
    if response is None or not response.ok:
        raise RuntimeError(f"{path} answered with {None if response is None else response.status}.")
    milliseconds: float = await page.evaluate("performance.getEntriesByType('navigation')[0].loadEventStart")
    return milliseconds / 1000


SCENARIO: Final = Scenario("console", "how long a page of the console takes over a large table", run)
