"""Live updates: server-sent events from one poller, which runs only while a page is watched."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match, Route

from faststream_outbox.console import rendering
from faststream_outbox.console.access import Access, AccessHook, ask
from faststream_outbox.console.errors import MissingError, PageError, title_of
from faststream_outbox.console.pages import PAGES
from faststream_outbox.console.site import Site
from faststream_outbox.console.visit import Page, Shown
from faststream_outbox.runtime.telemetry import describe

Load = Callable[[Page, Request, Access], Awaitable[Shown]]

# However many pages are watched, their statements take turns: together so many per second.
STATEMENTS_PER_SECOND: Final = 2
# The fewest seconds between two looks at one page, also at one that asks the database nothing.
_SHORTEST: Final = 0.5
_FIRST_COST: Final = 4
# After so long a stream ends, and the browser opens another one: rights that were taken away end with it.
_STREAM_SECONDS: Final = 300
# An event at least so often, by which both sides notice that the other one is gone.
_KEEP_ALIVE: Final = 15.0


@dataclass(eq=False)
class Watched:
    """A page that is watched, with the rights of its user."""

    page: Page
    request: Request
    access: Access
    sent: str = ""
    # How many statements the last look has needed; at first what most pages need.
    cost: int = _FIRST_COST
    watchers: set[asyncio.Queue[str]] = field(default_factory=set)

    def send(self, event: str) -> None:
        """Give an event to all watchers; one that has not read the last event gets this one instead."""
        if event == self.sent:
            return
        self.sent = event
        for watcher in self.watchers:
            if watcher.full():
                watcher.get_nowait()
            watcher.put_nowait(event)


class Live:
    """The streams of a console, and the one task that reads for all of them."""

    def __init__(self, site: Site, access: AccessHook, load: Load) -> None:
        self._site = site
        self._access = access
        self._load = load
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._watched: dict[Any, Watched] = {}
        self._poller: asyncio.Task[None] | None = None
        # Whether the task waits for its next look, and runs no statement.
        self._rests = False

    @property
    def is_polling(self) -> bool:
        """Whether the task runs: a page is watched."""
        return self._poller is not None and not self._poller.done()

    async def stream(self, request: Request) -> Response:
        """Answer with the events of one page: each replaces its live part."""
        access = await ask(self._access, request)
        if isinstance(access, Response):
            return access
        page, of_page = _find(request)
        key = (request.query_params["page"], access, rendering.theme_of(request))
        events = self._events(key, Watched(page, of_page, access))
        return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self, key: Any, fresh: Watched) -> AsyncIterator[str]:
        watched = self._watched.setdefault(key, fresh)
        queue: asyncio.Queue[str] = asyncio.Queue(1)
        if watched.sent.startswith(_TROUBLE):  # nothing new is sent until it is over
            queue.put_nowait(watched.sent)
        watched.watchers.add(queue)
        if not self.is_polling:
            self._poller = asyncio.create_task(self._poll())
        ends = time.monotonic() + _STREAM_SECONDS
        try:
            yield "retry: 2000\n\n"
            while time.monotonic() < ends:
                try:
                    yield await asyncio.wait_for(queue.get(), _KEEP_ALIVE)
                except TimeoutError:
                    yield _event("alive", "")
            yield _event("again", "")
        finally:
            watched.watchers.discard(queue)
            if not watched.watchers and self._watched.get(key) is watched:
                del self._watched[key]
            # A statement is not cut off, which would cost its connection: the poller ends by itself after it.
            if not self._watched and self._poller is not None and self._rests:
                self._poller.cancel()

    async def _poll(self) -> None:
        while self._watched:
            for watched in list(self._watched.values()):
                self._rests = True
                # The rest is as long as the last look was dear.
                await self._sleep(max(_SHORTEST, watched.cost / STATEMENTS_PER_SECOND))
                self._rests = False
                if watched.watchers:
                    watched.send(await self._look(watched))

    async def _look(self, watched: Watched) -> str:
        try:
            shown = await self._load(watched.page, watched.request, watched.access)
            html = rendering.live_part(watched.request, self._site, watched.access, watched.page.nav, shown)
        except PageError as error:
            return _trouble(str(error))
        except (SQLAlchemyError, OSError) as error:
            return _trouble(title_of(error)[0], describe(getattr(error, "orig", None) or error))
        except Exception as error:  # noqa: BLE001 - a stream goes on whatever a hook raises
            return _trouble("Not updated", describe(error))
        watched.cost = shown.statements
        return _event("live", html)


_TROUBLE: Final = "event: trouble\n"


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _trouble(text: str, detail: str = "") -> str:
    return _event("trouble", {"text": text, "detail": detail})


def _find(request: Request) -> tuple[Page, Request]:
    """Return the page that a stream is for, and a request for it as the browser would send it."""
    target = request.query_params.get("page", "")
    try:
        url = URL(target)
        url.path  # noqa: B018 - parsed when it is asked for
    except ValueError as error:
        raise MissingError(f"No page is at {target!r}.") from error
    for page in PAGES:
        route = Route(page.path, _never)
        scope = {**request.scope, "path": url.path, "root_path": "", "query_string": url.query.encode()}
        match, child = route.matches(scope)
        if match is Match.FULL and page.is_live:
            root = request.scope.get("root_path", "")
            scope.update(child, root_path=root, path=f"{root}{url.path}")
            return page, Request(scope)
    raise MissingError(f"No page that updates itself is at {target!r}.")


async def _never(_request: Request) -> Response:
    raise AssertionError
