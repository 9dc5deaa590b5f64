"""How a request becomes a response: who asks, what a page reads, and errors as pages that say why."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from faststream_outbox.console import rendering
from faststream_outbox.console.access import Access, AccessHook, ask
from faststream_outbox.console.errors import PageError, RefusedError, title_of
from faststream_outbox.console.forms import BACK
from faststream_outbox.console.site import Site
from faststream_outbox.console.visit import Page, Shown, Visit
from faststream_outbox.operations import OperationsTableError
from faststream_outbox.runtime.telemetry import LOGGER, describe
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.errors import advice, without_values

Endpoint = Callable[[Request], Awaitable[Response]]
ActEndpoint = Callable[["Console", Request, Access], Awaitable[Response]]

# How long a page waits for the database; a browser would wait for minutes.
_ANSWER_SECONDS: Final = 10.0
# Where a request keeps what its user may do, for the page of an error.
_ACCESS: Final = "faststream_outbox.console.access"


@contextmanager
def _counting(session: SessionOrConnection | None) -> Iterator[list[str]]:
    """Collect the statements that are sent through a connection; a store in memory has none."""
    sent: list[str] = []
    if not isinstance(session, AsyncConnection) or session.sync_connection is None:
        yield sent
        return

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(session.sync_connection, "before_cursor_execute", note)
    yield sent


class Console:
    """Answers requests: asks who it is, shows a page, and shows errors as pages too."""

    def __init__(self, site: Site, access: AccessHook) -> None:
        self.site = site
        self.access = access

    async def show(self, page: Page, request: Request) -> Response:
        """Answer with a page."""
        access = await ask(self.access, request)
        if isinstance(access, Response):
            return access
        request.scope[_ACCESS] = access
        shown = await self.load(page, request, access)
        if page.is_live:
            live_url = rendering.link(request.scope.get("root_path", ""), "live", page=self._here(request))
            shown = replace(shown, values={"live_url": live_url, **shown.values})
        return self.respond(request, access, page.nav, shown)

    async def load(self, page: Page, request: Request, access: Access) -> Shown:
        """Read what a page shows, in one read-only transaction; raise `TimeoutError` if the database is silent."""
        return await within(_ANSWER_SECONDS, self._read(page, request, access))

    async def _read(self, page: Page, request: Request, access: Access) -> Shown:
        async with self.site.operations.reading() as session:
            visit = Visit(self.site, access, request.query_params, session, request.path_params)
            with _counting(session) as sent:
                shown = await page.load(visit)
        # One more has made the transaction read-only.
        return replace(shown, statements=1 + len(sent))

    def respond(self, request: Request, access: Access | None, nav: str, shown: Shown) -> Response:
        """Return a page as a response."""
        return HTMLResponse(rendering.page(request, self.site, access, nav, shown), shown.status)

    async def act(self, endpoint: ActEndpoint, request: Request) -> Response:
        """Answer a request that may change something."""
        access = await ask(self.access, request)
        if isinstance(access, Response):
            return access
        request.scope[_ACCESS] = access
        return await endpoint(self, request, access)

    def check_act(self, access: Access, action: str, queue: str | None = None) -> None:
        """Raise `RefusedError` if the user may not do this."""
        if self.site.read_only:
            raise RefusedError("This console is read-only: nothing can be changed here.")
        if not access.may(action, queue):
            where = "" if queue is None else f" on the queue {queue}"
            raise RefusedError(f"{access.user} may not do {action}{where}: the access hook does not allow it.")

    async def answer(self, endpoint: Endpoint, request: Request) -> Response:
        """Call an endpoint; what it raises becomes a page that says why."""
        try:
            return await endpoint(request)
        except PageError as error:
            title, status, text = error.title, error.status, str(error)
        except ValueError as error:
            # The core says so of what it is given: a name with a NUL, a number that is too large.
            title, status, text = PageError.title, PageError.status, str(error)
        except OperationsTableError as error:
            title, status, text = "A table is missing", 404, str(error)
        except (SQLAlchemyError, OSError) as error:
            title, status = title_of(error)
            said = describe(getattr(error, "orig", None) or error).rstrip(".")
            text = " ".join(filter(None, (f"{said}.", advice(error).strip())))
        except Exception as error:  # noqa: BLE001 - a hook of the application may raise anything
            LOGGER.exception("The console could not answer %s", request.url.path, exc_info=without_values(error))
            title, status = "This page failed", 500
            text = f"{type(error).__name__}: the log of the application has the details."
        return self._error(request, title, status, text)

    def refuse_foreign(self, request: Request) -> Response:
        """Return the page for a request that no page of this console has sent."""
        return self._error(
            request,
            RefusedError.title,
            RefusedError.status,
            "This came from another site, or your browser does not say from where: it was refused, and nothing was "
            "changed. Only pages of this console may change anything. If this was one of them, the proxy before it "
            "must pass Host as it came.",
        )

    def _error(self, request: Request, title: str, status: int, text: str) -> Response:
        values = {"title": title, "text": text, "status": status, "nav": None, "back": request.scope.get(BACK, "")}
        # Who is known keeps the menu.
        return self.respond(request, request.scope.get(_ACCESS), "", Shown("error.html", values, status))

    @staticmethod
    def _here(request: Request) -> str:
        root = request.scope.get("root_path", "")
        return f"{request.url.path.removeprefix(root)}{f'?{request.url.query}' if request.url.query else ''}"
