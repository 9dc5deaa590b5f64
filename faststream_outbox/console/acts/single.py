"""Acts on one thing: a queue, a key, a timer. A form says what would happen, and asks for a reason."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from faststream_outbox.console.access import Access
from faststream_outbox.console.acts.jobs import run_job
from faststream_outbox.console.answers import Console
from faststream_outbox.console.errors import MissingError, PageError
from faststream_outbox.console.forms import Form, read_form, required
from faststream_outbox.console.rendering import link
from faststream_outbox.console.site import Job
from faststream_outbox.console.visit import Shown
from faststream_outbox.operations import ActResult, AuditFilter, Count, OutboxOperations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@dataclass(frozen=True, slots=True)
class SingleAct:
    """An act on one thing, as its form shows it."""

    title: str
    consequence: str
    # What it is for: "queue", "key" or "timer_id"; the last two have a queue as well.
    of: str
    nothing: str
    is_final: bool = False

    @property
    def nav(self) -> str:
        """The entry of the menu that it belongs to."""
        return {"queue": "", "key": "keys", "timer_id": "timers"}[self.of]

    @property
    def noun(self) -> str:
        """What it acts on."""
        return {"queue": "queue", "key": "key", "timer_id": "timer"}[self.of]


_BUSY: Final = "There is no such key, or its first message is being handled."
SINGLE_ACTS: Final = {
    "pause": SingleAct(
        "Pause",
        "Nothing of the queue is claimed any more, in any process, within a second. Handlers that run end. Publishing "
        "goes on.",
        "queue",
        "It is paused already.",
    ),
    "resume": SingleAct("Resume", "The messages of the queue are delivered again.", "queue", "It was not paused."),
    "retry_key": SingleAct(
        "Retry",
        "The first message becomes due now. If it was parked, its attempts start again at zero.",
        "key",
        _BUSY,
    ),
    "release_key": SingleAct(
        "Release",
        "Parking or holding ends: the first message is due when it was due before, and its attempts stay counted.",
        "key",
        "It is neither parked nor held.",
    ),
    "skip_key": SingleAct(
        "Skip",
        "The first message becomes a dead letter, and the key goes on with the message behind it.",
        "key",
        _BUSY,
        is_final=True,
    ),
    "park_key": SingleAct(
        "Park",
        "The key stops at its first message until it is released, retried or skipped.",
        "key",
        "There is no such key, its first message is being handled, or it is parked already.",
    ),
    "hold_key": SingleAct(
        "Hold",
        "Messages of the key wait until it is released, also those that are published later; the key need not have "
        "messages.",
        "key",
        "It is parked or held already.",
    ),
    "cancel_timer": SingleAct(
        "Cancel",
        "The timer is deleted, and never delivered.",
        "timer_id",
        "There is no such timer, or it is being handled.",
        is_final=True,
    ),
    "fire_timer": SingleAct(
        "Fire now",
        "The timer is due now.",
        "timer_id",
        "There is no such timer, or it is due already.",
    ),
}
# For how long a queue can be paused; nothing is until it is resumed.
PAUSES: Final = (
    ("", "until it is resumed"),
    ("900", "15 minutes"),
    ("3600", "1 hour"),
    ("14400", "4 hours"),
    ("86400", "1 day"),
)


def _act(name: str) -> SingleAct:
    if name not in SINGLE_ACTS:
        raise MissingError(f"There is no act {name!r}.")
    return SINGLE_ACTS[name]


async def ask_single(console: Console, request: Request, access: Access) -> Response:
    """Show the form of an act: what would happen, and why it should."""
    name = str(request.path_params["act"])
    act, query = _act(name), request.query_params
    console.check_act(access, name, query.get("queue") or None)
    values = {
        "name": name,
        "act": act,
        "queue": query.get("queue", ""),
        "subject": query.get(act.of, ""),
        "pauses": PAUSES,
        "back": _back(act, query.get("queue", ""), query.get(act.of, "")),
    }
    return console.respond(request, access, act.nav, Shown("single.html", values))


async def do_single(console: Console, request: Request, access: Access) -> Response:
    """Do an act on one thing."""
    name = str(request.path_params["act"])
    act, form = _act(name), await read_form(request)
    queue = required(form, "queue", "The queue")
    console.check_act(access, name, queue)
    subject = required(form, act.of, f"The {act.noun}")
    reason = required(form, "reason", "The reason")
    given = {"reason": reason, "by": access.user} | _until(name, form)
    names = [queue] if act.of == "queue" else [queue, subject]
    operations = console.site.operations
    call: Callable[..., Awaitable[Any]] = getattr(operations, name)

    async def do(_progress: object) -> ActResult:
        changed = await call(*names, **given)
        if changed is None or changed is False:
            return ActResult(name, 0, {0: act.nothing})
        return ActResult(name, 1, {}, await _audit_id(operations, name, queue, access))

    job = Job(name, f"{act.title} {subject}", act.noun, _back(act, queue, subject), access.user, reason, Count(1))
    return await run_job(console, request, job, do)


def _until(name: str, form: Form) -> dict[str, Any]:
    seconds = form.get("seconds")
    if name != "pause" or not seconds:
        return {}
    if seconds not in dict(PAUSES):
        raise PageError(f"A pause of {seconds!r} seconds is not offered.")
    return {"until": datetime.now(UTC) + timedelta(seconds=int(seconds))}


async def _audit_id(operations: OutboxOperations, action: str, queue: str, access: Access) -> int | None:
    """Return the newest entry of the audit that says that this user did this to the queue."""
    if operations.audit_table is None:
        return None
    page = await operations.audit(AuditFilter(by=access.user, action=action, queue=queue), limit=1)
    return page.items[0].id if page.items else None


def _back(act: SingleAct, queue: str, subject: str) -> str:
    match act.of:
        case "queue":
            return link("", "queue", name=queue).lstrip("/")
        case "key":
            return link("", "key", queue=queue, key=subject).lstrip("/")
    return "timers"
