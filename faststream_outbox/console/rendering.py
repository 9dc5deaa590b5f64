"""The templates: HTML with every value escaped."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request

from faststream_outbox.__about__ import __version__
from faststream_outbox.console import charts, formats
from faststream_outbox.console.access import Access
from faststream_outbox.console.site import Site
from faststream_outbox.console.visit import Shown
from faststream_outbox.operations.bodies import MOST_INDENTED
from faststream_outbox.storage.checks import MAX_REASON_CHARS

FOLDER: Final = Path(__file__).parent
THEMES: Final = ("system", "light", "dark")
THEME_COOKIE: Final = "outbox_console_theme"

# The menu: path, title, and whether a rule stands above it.
MENU: Final = (
    ("", "Overview"),
    ("dead-letters", "Dead letters"),
    ("keys", "Keys"),
    ("timers", "Timers"),
    ("nodes", "Nodes"),
    ("audit", "Audit"),
    ("doctor", "Doctor"),
)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        name: getattr(formats, name)
        for name in (
            *("duration", "exact", "moment", "number", "size", "rate", "first_line", "preview", "hexadecimal"),
            *("cut", "short_exception", "plain_json", "pretty_json", "plural", "ago", "visible"),
        )
    }
    environment.globals |= {"bar": charts.bar, "sparkline": charts.sparkline, "version": __version__, "menu": MENU}
    return environment


def link(root: str, path: str, **query: Any) -> str:
    """Return the address of a page of the console; None as a value leaves a field out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{root}/{path.lstrip('/')}{f'?{urlencode(given)}' if given else ''}"


def page(request: Request, site: Site, access: Access | None, nav: str, shown: Shown) -> str:
    """Return a whole page as HTML."""
    return _environment().get_template(shown.template).render(_context(request, site, access, nav, shown.values))


def live_part(request: Request, site: Site, access: Access, nav: str, shown: Shown) -> str:
    """Return the part of a page that updates itself: the block `live` of its template."""
    template = _environment().get_template(shown.template)
    context = template.new_context(_context(request, site, access, nav, shown.values))
    return "".join(template.blocks["live"](context))


def theme_of(request: Request) -> str:
    """Return the theme that the user has chosen."""
    theme = request.cookies.get(THEME_COOKIE, "")
    return theme if theme in THEMES else THEMES[0]


def _context(
    request: Request, site: Site, access: Access | None, nav: str, values: Mapping[str, Any]
) -> dict[str, Any]:
    root = request.scope.get("root_path", "")

    def url(path: str = "", **query: Any) -> str:
        return link(root, path, **query)

    def may(action: str, queue: str | None = None) -> bool:
        return access is not None and not site.read_only and access.may(action, queue)

    shared = {
        "url": url,
        "has_audit": site.operations.audit_table is not None,
        "most_reason": MAX_REASON_CHARS,
        "most_indented": MOST_INDENTED,
        # How many queues the user sees, if not all of them.
        "sees_some": None if access is None or access.queues is None else len(access.queues),
    }
    return shared | {
        "may": may,
        "ui": _environment().get_template("macros.html").make_module(shared),
        "access": access,
        "site": site,
        "nav": nav,
        "theme": theme_of(request),
        "search": "",
        "live_url": None,
        "here": _here(request, root, values),
        **values,
    }


def _here(request: Request, root: str, values: Mapping[str, Any]) -> str:
    """Return the page that a change of the theme leads back to; what answers a post cannot be asked for again."""
    if request.method not in ("GET", "HEAD"):
        return str(values.get("back", ""))
    return request.url.path.removeprefix(root).lstrip("/") + (f"?{request.url.query}" if request.url.query else "")
