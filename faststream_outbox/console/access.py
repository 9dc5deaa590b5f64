"""Who may see and do what: `Access`, the rule without a hook, and the token of a console that stands alone."""

import hashlib
import hmac
import inspect
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal, get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from faststream_outbox.console.errors import RefusedError
from faststream_outbox.operations.base import current_user

Action = Literal[
    "pause",
    "resume",
    "deliver_now",
    "discard",
    "move",
    "retry_key",
    "skip_key",
    "park_key",
    "hold_key",
    "release_key",
    "replay",
    "edit_and_replay",
    "purge",
    "export",
    "cancel_timer",
    "fire_timer",
]
"""What a user of the console can do; the names are those of the methods of `OutboxOperations`, and of the audit."""

ACTIONS: Final[frozenset[str]] = frozenset(get_args(Action))


@dataclass(frozen=True, slots=True)
class Access:
    """What one user of the console may see and do.

    Attributes:
        user: The name of the user, for the audit.
        actions: The names of acts, such as `"replay"`; by default all. An empty collection allows to look only.
        queues: The queues that the user sees and acts on; by default all.

    Example:
        Access("ann@example.com", actions={"replay", "pause", "resume"}, queues={"orders"})

    """

    user: str
    actions: Collection[str] = ACTIONS
    queues: Collection[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or not self.user.strip():
            raise ValueError("Access needs the name of the user: it is written into the audit.")
        for name in ("actions", "queues"):
            if isinstance(getattr(self, name), str | bytes):
                raise TypeError(f"{name} of Access is a collection of names, not one text.")
        object.__setattr__(self, "actions", frozenset(self.actions))
        if self.queues is not None:
            object.__setattr__(self, "queues", frozenset(self.queues))
        unknown = sorted(set(self.actions) - ACTIONS)
        if unknown:
            raise ValueError(f"There is no act {', '.join(unknown)}; there are {', '.join(sorted(ACTIONS))}.")

    def sees(self, queue: str | None) -> bool:
        """Return whether the user may see a queue; None stands for all queues."""
        return self.queues is None or (queue is not None and queue in self.queues)

    def may(self, action: str, queue: str | None = None) -> bool:
        """Return whether the user may do something with a queue, or with any of the queues that the user sees."""
        return action in self.actions and (queue is None or self.sees(queue))


Answer = Access | Response | None
AccessHook = Callable[[Request], Answer | Awaitable[Answer]]


async def ask(hook: AccessHook, request: Request) -> Access | Response:
    """Return what the hook allows, or the response that it gives instead; raise `RefusedError` if it allows nothing."""
    answer = hook(request)
    if inspect.isawaitable(answer):
        answer = await answer
    if answer is None:
        raise RefusedError("You have no access to this console: the application's access hook returned nothing.")
    return answer


# What proxies add to a request that they pass on.
_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


def allow_loopback(request: Request) -> Access:
    """Allow everything to who sits at this machine: the rule of a console that was given no hook.

    A request that a proxy of this machine has passed on may come from anywhere, and is refused.
    """
    if any(name in request.headers for name in _FORWARDED):
        raise RefusedError(
            "This request came through a proxy, so this console cannot see who sent it: give make_console(…, access=…) "
            "a function that says it."
        )
    return allow_this_machine(request)


def allow_this_machine(request: Request) -> Access:
    """Allow everything to a connection from this machine; a proxy here may have opened it for another one.

    The name in the address is checked too: a page of another site, whose name was made to point to this machine, does
    not get in.
    """
    client = request.client.host if request.client is not None else ""
    if not (is_loopback(client) and is_loopback(request.url.hostname or "")):
        raise RefusedError(
            "This console answers this machine only (127.0.0.1 or localhost), because it was made without access=…: "
            "give make_console(…, access=…) a function that says who a request comes from."
        )
    return Access(current_user())


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class TokenAccess:
    """Asks for a token once, and remembers it in a cookie that only this site sends and no script can read."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        # Neither the cookie nor its name tells the token, and two consoles of one machine do not share a cookie.
        self._value = hashlib.sha256(f"cookie {self.token}".encode()).hexdigest()
        self._name = f"outbox_console_{hashlib.sha256(self._value.encode()).hexdigest()[:8]}"

    def __call__(self, request: Request) -> Access | Response:
        """Return the access of a browser that has the cookie; send others to the form that asks for the token."""
        access = allow_this_machine(request)
        if hmac.compare_digest(request.cookies.get(self._name, "").encode(), self._value.encode()):
            return access
        return RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)

    def matches(self, token: str) -> bool:
        """Return whether this is the token."""
        return hmac.compare_digest(token.strip().encode(), self.token.encode())

    def remember(self, request: Request, response: Response) -> None:
        """Set the cookie."""
        response.set_cookie(
            self._name,
            self._value,
            path=request.scope.get("root_path", "") or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
