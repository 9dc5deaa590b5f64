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
from faststream_outbox.console.forms import Form, read_form, reason_of
from faststream_outbox.console.rendering import link
from faststream_outbox.console.site import Job
from faststream_outbox.console.visit import LARGEST_ID, Fields, Shown
from faststream_outbox.operations import ActResult, AuditFilter, Count, Message, OutboxOperations
from faststream_outbox.storage.checks import check_name

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
    # Whether it is for the message that the form has shown, and not for one that is first by then.
    of_head: bool = False

    @property
    def nav(self) -> str:
        """The entry of the menu that it belongs to."""
        return {"queue": "", "key": "keys", "timer_id": "timers"}[self.of]

    @property
    def noun(self) -> str:
        """What it acts on."""
        return {"queue": "queue", "key": "key", "timer_id": "timer"}[self.of]


_OTHER_HEAD: Final = "Another message is first now: go back and look at it before you decide."
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
        of_head=True,
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
        of_head=True,
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
    """Show the form of an act: what would happen, to what, and why it should."""
    name = str(request.path_params["act"])
    act, query = _act(name), request.query_params
    console.check_act(access, name, query.get("queue") or None)
    given = {each: query.get(each, "") for each in ("queue", act.of)}
    return await _form(console, request, access, name, given=given)


async def _form(
    console: Console, request: Request, access: Access, name: str, *, given: dict[str, str], error: str | None = None
) -> Response:
    """Answer with the form; after an error with what was typed, and why it was refused."""
    act, query = _act(name), request.query_params
    queue, subject = given["queue"], given[act.of]
    values = {
        "name": name,
        "act": act,
        "consequence": _consequence(name, act, console.site.operations),
        # What the link to the form has named; the rest is typed.
        "named": Fields({each: query[each] for each in ("queue", act.of) if query.get(each)}),
        "given": Fields(given),
        "subject": subject,
        "head": await _head(console, queue, subject) if act.of == "key" else None,
        "pauses": PAUSES,
        "error": error,
        "back": _back(act, queue, subject),
    }
    return console.respond(request, access, act.nav, Shown("single.html", values, 200 if error is None else 422))


def _consequence(name: str, act: SingleAct, operations: OutboxOperations) -> str:
    if name == "skip_key" and not operations.has_dead_letters:
        return (
            "The first message is deleted for good: there is no dead-letter table. The key goes on with the message "
            "behind it."
        )
    return act.consequence


async def _head(console: Console, queue: str, key: str) -> Message | None:
    """Return the first message of a key, as it may be shown."""
    try:
        check_name("queue", queue)
        check_name("key", key)
    except ValueError:  # a field is empty yet, or was refused
        return None
    operations = console.site.operations
    async with operations.reading() as session:
        detail = await operations.key(queue, key, limit=1, session=session)
    return None if detail is None else console.site.redact(detail.messages[0])


async def do_single(console: Console, request: Request, access: Access) -> Response:
    """Do an act on one thing; show its form again if a field is wrong."""
    name = str(request.path_params["act"])
    act, form = _act(name), await read_form(request)
    fields = {each: form.get(each).strip() for each in ("queue", act.of, "reason", "seconds", "head")}
    queue, subject = fields["queue"], fields[act.of]
    console.check_act(access, name, queue or None)
    try:
        for what in dict.fromkeys(("queue", act.of)):
            check_name(f"The {'queue' if what == 'queue' else act.noun}", fields[what])
        given = {"reason": reason_of(form), "by": access.user} | _until(name, form)
        if act.of_head:
            given["head"] = _id_of(fields["head"])
    except (PageError, ValueError) as error:
        return await _form(console, request, access, name, given=fields, error=str(error))
    names = [queue] if act.of == "queue" else [queue, subject]
    operations = console.site.operations
    call: Callable[..., Awaitable[Any]] = getattr(operations, name)

    async def do(_progress: object) -> ActResult:
        changed = await call(*names, **given)
        if changed is None or changed is False:
            head = await _head(console, queue, subject) if act.of_head else None
            is_other = head is not None and head.id != given["head"]
            return ActResult(name, 0, {0: _OTHER_HEAD if is_other else act.nothing})
        return ActResult(name, 1, {}, await _audit_id(operations, name, queue, access))

    title = f"{act.title} {subject}"
    job = Job(name, title, act.noun, _back(act, queue, subject), access.user, given["reason"], Count(1))
    return await run_job(console, request, job, do)


def _id_of(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text[:20]) <= LARGEST_ID):
        raise PageError("The form has not shown which message is first: look at it below, and confirm again.")
    return int(text)


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
