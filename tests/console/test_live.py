"""Live updates: one poller while somebody watches, within its budget of statements, and nothing otherwise."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.requests import Request

from faststream_outbox.console import Access, make_console
from faststream_outbox.console.live import STATEMENTS_PER_SECOND, Live
from faststream_outbox.console.pages import PAGES
from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage import NewRow
from tests.console.outbox import ConsoleOutbox, serving
from tests.proxy import proxying
from tests.waiting import until

LIVE = [page for page in PAGES if page.is_live and "{" not in page.path]
MOST_OF_A_LOOK = 12
QUERIES = {"/queue": "?name=orders&state=delayed", "/key": "?queue=customers&key=ada"}


@contextlib.contextmanager
def counted(outbox: ConsoleOutbox) -> Iterator[list[str]]:
    """Collect the statements that the engine sends."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(outbox.backend.engine.sync_engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(outbox.backend.engine.sync_engine, "before_cursor_execute", note)


async def events(client: httpx.AsyncClient, page: str) -> AsyncGenerator[tuple[str, Any]]:
    async with client.stream("GET", "/live", params={"page": page}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


async def test_a_watcher_sees_what_changes_and_then_costs_nothing(outbox: ConsoleOutbox) -> None:
    app = make_console(outbox.operations)
    live: Live = app.state.live
    with counted(outbox) as sent:
        async with serving(app) as client:
            assert (live.is_polling, sent) == (False, [])
            stream = events(client, "/")
            name, part = await anext(stream)
            assert name == "live"
            assert "The outbox is empty" in part
            await outbox.backend.insert(NewRow("orders", b"1"))
            async for _, part in stream:
                if "orders" in part:
                    break
            await stream.aclose()
            await until(lambda: not live.is_polling)
        assert live._watched == {}


async def test_a_database_that_fails_is_told_to_watchers_and_looked_at_again(outbox: ConsoleOutbox) -> None:
    async with serving(make_console(outbox.operations)) as client:
        stream = events(client, "/keys")
        assert (await anext(stream))[0] == "live"
        await outbox.backend.run("ALTER TABLE outbox RENAME TO away")
        name, said = await anext(stream)
        assert (name, said["text"]) == ("trouble", "A table or a column is missing")
        assert "does not exist" in said["detail"]
        # A browser that comes now is told too, although nothing new is sent.
        second = events(client, "/keys")
        assert await anext(second) == (name, said)
        await second.aclose()
        await outbox.backend.run("ALTER TABLE away RENAME TO outbox")
        assert (await anext(stream))[0] == "live"


async def test_a_database_that_is_silent_is_told_to_watchers_and_on_pages(
    outbox: ConsoleOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faststream_outbox.console.answers._ANSWER_SECONDS", 1.0)
    url = outbox.backend.engine.url.render_as_string(hide_password=False)
    async with proxying(url) as proxy:
        engine = create_async_engine(proxy.url(url), pool_size=1, max_overflow=0)
        operations = OutboxOperations(engine, outbox_table=outbox.backend.outbox_table)
        async with serving(make_console(operations)) as client:
            stream = events(client, "/keys")
            assert (await anext(stream))[0] == "live"
            proxy.freeze()
            name, said = await anext(stream)
            assert (name, said["text"]) == ("trouble", "The database did not answer")
            # The first waits for the only connection too.
            for _ in range(2):
                page = await client.get("/keys")
                assert (page.status_code, "The database did not answer" in page.text) == (503, True)
            proxy.thaw()
            assert (await anext(stream))[0] == "live"
            await stream.aclose()
        await engine.dispose()


class Watcher:
    """Watches pages without a server, on a clock of its own."""

    def __init__(self, outbox: ConsoleOutbox) -> None:
        self.live: Live = make_console(outbox.operations).state.live
        self.live._sleep = self._sleep
        self.slept: list[float] = []
        self.streams: list[Any] = []

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    async def watch(self, page: str) -> None:
        response: Any = await self.live.stream(request(page))
        stream = response.body_iterator
        assert (await anext(stream)).startswith("retry:")
        self.streams.append(stream)

    async def close(self) -> None:
        for stream in self.streams:
            await stream.aclose()


def request(page: str) -> Request:
    query = str(httpx.QueryParams({"page": page})).encode()
    headers = [(b"host", b"127.0.0.1")]
    scope = {"type": "http", "method": "GET", "path": "/live", "root_path": "", "query_string": query}
    return Request(
        {**scope, "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http"}
    )


@pytest.mark.parametrize("pages", [*[[page.path] for page in LIVE], [page.path for page in LIVE]], ids="+".join)
async def test_watchers_cost_two_statements_a_second_however_many_they_are(
    outbox: ConsoleOutbox, pages: list[str]
) -> None:
    await outbox.fill()
    watcher = Watcher(outbox)
    with counted(outbox) as sent:
        for page in [*pages, *pages]:
            await watcher.watch(f"{page}{QUERIES.get(page, '')}")
        looks = 10 * len(pages)
        await until(lambda: len(watcher.slept) > looks)
        await watcher.close()
        await until(lambda: not watcher.live.is_polling)
        statements, seconds = len(sent), sum(watcher.slept)
    assert statements >= looks
    # The rest that pays for the last look of each page comes after it.
    assert statements <= STATEMENTS_PER_SECOND * seconds + MOST_OF_A_LOOK * len(pages)


async def test_rights_that_were_taken_away_end_with_the_stream(
    outbox: ConsoleOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = [True]
    console = make_console(outbox.operations, access=lambda _request: Access("ann") if allowed[0] else None)
    async with serving(console) as client:
        monkeypatch.setattr("faststream_outbox.console.live._STREAM_SECONDS", 0)
        assert [each async for each in events(client, "/")] == [("again", "")]
        allowed[0] = False
        assert (await client.get("/live", params={"page": "/"})).status_code == 403
