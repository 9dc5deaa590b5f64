"""`make_console`: the console as an ASGI application, to be mounted or to stand alone."""

from functools import partial

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from faststream_outbox.broker import OutboxBroker
from faststream_outbox.console import rendering
from faststream_outbox.console.access import AccessHook, TokenAccess, allow_loopback, allow_this_machine
from faststream_outbox.console.acts import ACT_ROUTES
from faststream_outbox.console.answers import Console, Endpoint
from faststream_outbox.console.errors import MissingError, PageError
from faststream_outbox.console.forms import read_form
from faststream_outbox.console.guard import Guard
from faststream_outbox.console.live import Live
from faststream_outbox.console.pages import PAGES
from faststream_outbox.console.site import Redact, Site, show_as_it_is
from faststream_outbox.console.visit import Shown
from faststream_outbox.operations import OutboxOperations


async def _theme(request: Request) -> Response:
    """Remember a theme; no right is needed, and nothing but the cookie is changed."""
    form, root = await read_form(request), request.scope.get("root_path", "")
    theme, back = form.get("theme"), form.back
    if theme not in rendering.THEMES:
        raise PageError(f"There is no theme {theme!r}; there are {', '.join(rendering.THEMES)}.")
    response = RedirectResponse(f"{root}/{back}", 303)
    secure = request.url.scheme == "https"
    response.set_cookie(
        rendering.THEME_COOKIE,
        theme,
        max_age=365 * 86_400,
        path=root or "/",
        samesite="strict",
        secure=secure,
        httponly=True,
    )
    return response


async def _login(console: Console, request: Request) -> Response:
    hook = console.access
    if not isinstance(hook, TokenAccess):
        raise MissingError("This console has no token: the application decides who has access.")
    allow_this_machine(request)
    wrong = False
    if request.method == "POST":
        if hook.matches((await read_form(request)).get("token")):
            response = RedirectResponse(f"{request.scope.get('root_path', '')}/", 303)
            hook.remember(request, response)
            return response
        wrong = True
    return console.respond(request, None, "", Shown("login.html", {"wrong": wrong}, 403 if wrong else 200))


async def _missing(request: Request) -> Response:
    raise MissingError(f"There is no page {request.url.path}.")


def make_console(
    outbox: OutboxBroker | OutboxOperations,
    *,
    access: AccessHook | None = None,
    read_only: bool = False,
    redact: Redact | None = None,
    title: str = "Outbox",
) -> Starlette:
    """Make the console of an outbox: an ASGI application, to be mounted under a prefix or to stand alone.

    Args:
        outbox: The broker, or its operations; its engine is used.
        access: A function, or a coroutine function, that gets each request and returns what its user may do: an
            `Access`, None to refuse, or a response such as a redirect to the login. Without one, only this machine
            gets an answer.
        read_only: Whether nothing can be changed: no act is offered, and the transactions are READ ONLY.
        redact: A function that gets each `Message` and `DeadLetter` before it is shown, and returns it or a copy with
            other values: `dataclasses.replace(message, body=…)`. Exports are refused then.
        title: The name of the outbox, for the head of each page.

    Example:
        app = FastAPI()
        app.mount(
            "/outbox",
            make_console(broker, access=lambda request: Access(request.headers["x-user"])),
        )

    """
    operations = outbox.operations if isinstance(outbox, OutboxBroker) else outbox
    site = Site(operations.as_read_only() if read_only else operations, operations, title, read_only)
    site.redact = redact or show_as_it_is
    console = Console(site, access or allow_loopback)
    live = Live(site, console.access, console.load)

    def endpoint(function: Endpoint) -> Endpoint:
        return partial(console.answer, function)

    routes = [Route(page.path, endpoint(partial(console.show, page))) for page in PAGES]
    routes += [Route(path, endpoint(partial(console.act, act)), methods=[method]) for method, path, act in ACT_ROUTES]
    app = Starlette(
        routes=[
            *routes,
            Route("/live", endpoint(live.stream)),
            Route("/login", endpoint(partial(_login, console)), methods=["GET", "POST"]),
            Route("/theme", endpoint(_theme), methods=["POST"]),
            Mount("/static", StaticFiles(directory=rendering.FOLDER / "static")),
            Route("/{path:path}", endpoint(_missing)),
        ],
        middleware=[Middleware(Guard, refuse=console.refuse_foreign)],
    )
    app.state.live = live
    return app
