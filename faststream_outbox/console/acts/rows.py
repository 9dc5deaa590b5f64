"""Acts on rows: those with some ids, or all that match a filter, frozen by the preview and confirmed after it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from faststream_outbox.console.access import Access
from faststream_outbox.console.acts.jobs import run_job
from faststream_outbox.console.answers import Console
from faststream_outbox.console.errors import MissingError, PageError, RefusedError
from faststream_outbox.console.forms import Form, read_form, reason_of, required
from faststream_outbox.console.pages.dead_letters import FIELDS as LETTER_FIELDS
from faststream_outbox.console.pages.messages import message_fields
from faststream_outbox.console.site import Job
from faststream_outbox.console.visit import LARGEST_ID, Shown, Visit, filter_of
from faststream_outbox.operations import Count, DeadLetterFilter, MessageFilter, Selection
from faststream_outbox.operations.selections import selection_of
from faststream_outbox.storage.checks import check_name, check_number
from faststream_outbox.storage.operating.reads import Kind

_MESSAGE_FIELDS: Final = ("queue", "state", "key", "correlation_id", "header", "node")
_SAMPLE: Final = 10
_MOST_IDS: Final = 500


@dataclass(frozen=True, slots=True)
class RowAct:
    """An act on rows, as the preview shows it."""

    kind: Kind
    title: str
    # What the button says, and what happens.
    button: str
    consequence: str
    is_final: bool = False
    # A field that the act needs beside the reason: `queue` or `rate`.
    field: str | None = None

    @property
    def noun(self) -> str:
        """What it acts on."""
        return "message" if self.kind == "messages" else "dead letter"


ROW_ACTS: Final = {
    "deliver_now": RowAct(
        "messages",
        "Deliver now",
        "Deliver now",
        "Messages that wait for their time or for a retry become due. Those of a key still wait for the ones before "
        "them; parked messages are left out.",
    ),
    "discard": RowAct(
        "messages",
        "Discard",
        "Discard for good",
        "The messages are deleted for good, and do not become dead letters. Those that a process handles are left out.",
        is_final=True,
    ),
    "move": RowAct(
        "messages",
        "Move to another queue",
        "Move",
        "The messages wait in the other queue. Those of a key go there in their order, behind what waits there.",
        field="queue",
    ),
    "replay": RowAct(
        "dead_letters",
        "Replay",
        "Replay",
        "The dead letters go back into their queues, with no attempts counted. Those of a key come before all that "
        "waits of the key.",
        field="rate",
    ),
    "purge": RowAct(
        "dead_letters",
        "Purge",
        "Purge for good",
        "The dead letters are deleted for good. Export them first if you may need them.",
        is_final=True,
    ),
}


class _UnknownQueueError(PageError):
    """Messages would be moved to a queue that nothing knows, which may be a typing error."""


async def preview(console: Console, request: Request, access: Access) -> Response:
    """Show which rows an act would change: how many, and the first of them; nothing is changed."""
    form = await read_form(request)
    name = form.get("act")
    act = _act(name)
    console.check_act(access, name)
    selection = await select(console, access, act.kind, form)
    check_rights(console, access, name, selection)
    return await _show(console, request, access, name, selection, form=form)


async def _show(
    console: Console,
    request: Request,
    access: Access,
    name: str,
    selection: Selection,
    *,
    form: Form,
    error: Exception | None = None,
) -> Response:
    """Answer with the preview; after an error with what was typed, and why it was refused."""
    act = ROW_ACTS[name]
    sample = selection.sample or await _read(console, act.kind, selection.ids[:_SAMPLE])
    values = {
        "act": act,
        "name": name,
        "selection": selection,
        "sample": _visit(console, access).redact(sample),
        "frozen": json.dumps(selection.to_dict()),
        "describes": described(selection),
        "back": form.back,
        "error": None if error is None else str(error),
        "given": {each: form.get(each) for each in ("queue", "rate", "reason")},
        # The name of an unknown queue, which the next click confirms.
        "sure": form.get("queue").strip() if isinstance(error, _UnknownQueueError) else form.get("sure"),
        "queues": await _known_queues(console, access) if act.field == "queue" else [],
    }
    return console.respond(request, access, _nav(act), Shown("preview.html", values, 200 if error is None else 422))


async def run(console: Console, request: Request, access: Access) -> Response:
    """Do an act on the rows that a preview has frozen; show the preview again if a field is wrong."""
    form = await read_form(request)
    name = form.get("act")
    act = _act(name)
    try:
        selection = Selection.from_dict(json.loads(form.get("selection")))
        selection_of(selection, act.kind)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise PageError("The selection cannot be read: go back to the rows, and choose them again.") from error
    if selection.ids:
        _check_number(selection.ids)
    check_rights(console, access, name, selection)
    if access.queues is not None and selection.ids:
        ids = await _seen_ids(console, access, act.kind, selection.ids)
        selection = replace(selection, ids=ids, count=Count(len(ids)))
    if act.field == "queue":
        console.check_act(access, name, form.get("queue").strip() or None)
    try:
        reason = reason_of(form)
        given = _rate(form) if act.field == "rate" else {}
        if act.field == "queue":
            given = {"queue": await _other_queue(console, access, selection, form)}
    except (PageError, ValueError) as error:
        return await _show(console, request, access, name, selection, form=form, error=error)
    job = Job(name, act.title, act.noun, form.back, access.user, reason, selection.count)
    job.target = selection.describe()
    job.form = {each: form.get(each) for each in ("act", "reason", "back", "queue", "rate", "sure")}
    job.form["selection"] = json.dumps(selection.to_dict())
    call: Callable[..., Any] = getattr(console.site.operations, name)
    return await run_job(
        console,
        request,
        job,
        lambda progress: call(selection, **given, reason=reason, by=access.user, progress=progress),
    )


def _rate(form: Form) -> dict[str, Any]:
    text = form.get("rate").strip()
    if not text:
        return {}
    try:
        rate = float(text)
    except ValueError:
        raise PageError(f"The rate is a number of messages per second, not {text!r}.") from None
    return {"rate": check_number("The rate", rate, least=0.001)}


async def _other_queue(console: Console, access: Access, selection: Selection, form: Form) -> str:
    """Return the queue to move to; raise if the messages are in it, or if it is unknown and was not confirmed."""
    queue = check_name("The queue", required(form, "queue", "The other queue"))
    where, rows = selection.where, await _read(console, "messages", selection.ids)
    if (where is not None and where.queue == queue) or (rows and all(row.queue == queue for row in rows)):
        raise PageError(f"The messages are in the queue {queue} already: name another one.")
    if form.get("sure") != queue and queue not in await _known_queues(console, access):
        raise _UnknownQueueError(
            f"The queue {queue} has no messages, and no process reads it. Check the name; to move the messages there, "
            "confirm again."
        )
    return queue


async def _known_queues(console: Console, access: Access) -> list[str]:
    async with console.site.operations.reading() as session:
        found = await console.site.operations.queues(session=session)
    return [each.queue for each in found if access.sees(each.queue)]


async def select(console: Console, access: Access, kind: Kind, form: Form) -> Selection:
    """Return the rows that a form names: those that are ticked, or all that match its filter."""
    if form.get("scope") == "all":
        names = _MESSAGE_FIELDS if kind == "messages" else LETTER_FIELDS
        fields = {name: value for name in names if (value := form.get(f"where_{name}").strip())}
        filter_kind = MessageFilter if kind == "messages" else DeadLetterFilter
        where = filter_of(filter_kind, message_fields(fields) if kind == "messages" else fields)
        async with console.site.operations.reading() as session:
            return await console.site.operations.select(where, session=session)
    try:
        ids = [int(each) for each in form.all("ids")]
    except ValueError:
        raise PageError("Ids are numbers: go back, and choose the rows again.") from None
    if not ids:
        raise PageError("No rows are chosen: go back and tick some, or choose all that match.")
    _check_number(ids)
    if access.queues is not None:
        ids = list(await _seen_ids(console, access, kind, ids))
    sample = await _read(console, kind, ids[:_SAMPLE])
    return replace(selection_of(ids, kind), sample=tuple(sample))


def _check_number(ids: Sequence[int]) -> None:
    if len(ids) > _MOST_IDS:
        raise PageError(f"At most {_MOST_IDS} rows can be ticked: choose all that match instead.")
    if not all(0 < each <= LARGEST_ID for each in ids):
        raise PageError("There is no row with such an id: go back, and choose the rows again.")


def check_rights(console: Console, access: Access, action: str, selection: Selection) -> None:
    """Raise `RefusedError` if the user may not do an act on the queues of a selection."""
    where = selection.where
    queue = None if where is None else where.queue
    console.check_act(access, action, queue)
    if where is not None and not access.sees(queue):
        raise RefusedError("You see some queues only: choose one of them first.")


async def _seen_ids(console: Console, access: Access, kind: Kind, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the ids of the rows that are there now and that the user sees.

    Others look like rows that are gone. A row that gets such an id while the act runs is of any queue, and left alone.
    """
    found = tuple(row.id for row in await _read(console, kind, ids) if access.sees(row.queue))
    if not found:
        raise MissingError("There is no such row: it was handled, replayed or deleted, or was never there.")
    return found


async def _read(console: Console, kind: Kind, ids: Sequence[int]) -> list[Any]:
    operations = console.site.operations
    async with operations.reading() as session:
        read = operations.message if kind == "messages" else operations.dead_letter
        found = [await read(each, session=session) for each in ids]
    return [each for each in found if each is not None]


def described(selection: Selection) -> list[tuple[str, str]]:
    """Return the filter of a selection, for people."""
    if selection.where is None:
        return []
    return [
        (name.replace("_", " "), " = ".join(value) if isinstance(value, tuple) else str(value))
        for name, value in selection.where
    ]


def _visit(console: Console, access: Access) -> Visit:
    return Visit(console.site, access, QueryParams(), None)


def _act(name: str) -> RowAct:
    if name not in ROW_ACTS:
        raise PageError(f"There is no act {name!r} on rows.")
    return ROW_ACTS[name]


def _nav(act: RowAct) -> str:
    return "" if act.kind == "messages" else "dead-letters"
