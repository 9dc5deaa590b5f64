"""Timers, nodes, the audit, and the doctor."""

import time
from typing import Any, Final

from faststream_outbox.console.errors import MissingError, PageError, RefusedError
from faststream_outbox.console.site import Examined
from faststream_outbox.console.visit import LARGEST_ID, PAGE_SIZE, Fields, Shown, Visit, filter_of
from faststream_outbox.operations import AuditEntry, AuditFilter, MessageFilter

# Where the console shows what a check of the doctor is about.
_PAGES: Final = {
    "keys": ("keys", "Keys that wait"),
    "dead_letters": ("dead-letters", "Dead letters"),
    "queues": ("", "Queues"),
    "pauses": ("", "Queues"),
    "backlog": ("", "Queues"),
    "leases": ("nodes", "Nodes"),
    "handlers": ("nodes", "Nodes"),
}


async def timers(visit: Visit) -> Shown:
    """Show timers, and when they are due."""
    fields = visit.given("queue", "timer_id")
    if "queue" in fields:
        visit.check_queue(fields["queue"])
    where, after = filter_of(MessageFilter, fields), visit.query.get("after") or None
    try:
        page = await visit.operations.timers(where, after=after, limit=PAGE_SIZE, session=visit.session)
    except ValueError as error:
        raise PageError(str(error)) from error
    return Shown("timers.html", {"timers": visit.redact(page.items), "page": page, "after": after, "fields": fields})


async def nodes(visit: Visit) -> Shown:
    """Show the processes: where they run, what they read and what they hold."""
    found = await visit.operations.nodes(session=visit.session)
    seen = [each for each in found if visit.access.queues is None or any(map(visit.access.sees, each.queues or ()))]
    return Shown("nodes.html", {"nodes": seen, "has_table": visit.operations.nodes_table is not None})


async def audit(visit: Visit) -> Shown:
    """Show what operators did, the newest first."""
    if visit.operations.audit_table is None:
        return Shown("audit.html", {"entries": None, "page": None, "after": None, "fields": Fields()})
    fields = visit.given("queue", "by", "action")
    if "queue" in fields:
        visit.check_queue(fields["queue"])
    where, after = filter_of(AuditFilter, fields), visit.query.get("after") or None
    if after is not None and not (after.isdecimal() and len(after) < len(str(LARGEST_ID))):
        raise PageError(f"after={after!r} is no place in the audit.")
    page = await visit.operations.audit(where, after=after, limit=PAGE_SIZE, session=visit.session)
    shown = [each for each in page.items if _sees(visit, each)]
    return Shown("audit.html", {"entries": shown, "page": page, "after": after, "fields": fields})


async def audit_entry(visit: Visit) -> Shown:
    """Show one act: who did what, when, why, and to which rows."""
    entry_id = visit.number_in_path()
    if entry_id >= LARGEST_ID:
        raise MissingError(f"There is no act {entry_id} in the audit.")
    page = await visit.operations.audit(after=str(entry_id + 1), limit=1, session=visit.session)
    entry = next(iter(page.items), None)
    if entry is None or entry.id != entry_id or not _sees(visit, entry):
        raise MissingError(f"There is no act {entry_id} in the audit.")
    return Shown("audit_entry.html", {"entry": entry})


def _sees(visit: Visit, entry: AuditEntry) -> bool:
    """Return whether a user sees an act: one on a queue that the user sees, or an own one, which may have only ids."""
    return entry.by == visit.access.user or visit.access.sees(queue_of(entry.target))


def queue_of(target: dict[str, Any]) -> str | None:
    """Return the queue that an act was for, if it was for one."""
    where = target.get("where")
    return target.get("queue") or (where.get("queue") if isinstance(where, dict) else None)


async def doctor(visit: Visit) -> Shown:
    """Examine the outbox, and show what is wrong, worst first."""
    if visit.access.queues is not None:
        raise RefusedError("The doctor examines all queues, and you see some of them.")
    examined = visit.site.examined
    if examined is None or visit.query.get("again"):
        examined = Examined(await visit.site.examined_operations.doctor(), time.monotonic())
        visit.site.examined = examined
    return Shown("doctor.html", {"examined": examined, "pages": _PAGES})
