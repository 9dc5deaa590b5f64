"""What guards every response of the console: its headers, and the rule that only its own pages may change anything."""

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Own files only, and nothing inline: a body that is HTML or a script stays text even if escaping failed.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Tells other sites nothing. `no-referrer` would take away `Origin` as well, by which a post is checked where a
    # browser sends no `Sec-Fetch-Site`: over plain HTTP.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE: Final = ("GET", "HEAD")


class Guard:
    """Refuses posts of other sites, and adds the headers of security to each response."""

    def __init__(self, app: ASGIApp, refuse: Callable[[Request], Response]) -> None:
        self._app = app
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                # Pages show customers' data: nothing of them stays in a cache. Files of the package say otherwise.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if scope["method"] not in _SAFE and not is_same_origin(Headers(scope=scope)):
            # The access hook is not asked: what another site has sent says nothing about the user.
            await self._refuse(Request(scope))(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)


def is_same_origin(headers: Headers) -> bool:
    """Return whether a page of this console has sent a request, by what the browser says of it."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == headers.get("host")
