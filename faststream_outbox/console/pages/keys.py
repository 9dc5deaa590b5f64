"""Keys that wait, and one key with what is behind it."""

from typing import Final, get_args

from faststream_outbox.console.errors import PageError
from faststream_outbox.console.visit import PAGE_SIZE, Shown, Visit
from faststream_outbox.storage.ordering.states import KeyStateName

KEY_STATES: Final[tuple[str, ...]] = get_args(KeyStateName)


async def keys(visit: Visit) -> Shown:
    """Show the keys that are blocked, why, for how long, and how much waits behind them."""
    fields = visit.given("state", "queue")
    if "queue" in fields:
        visit.check_queue(fields["queue"])
    after = visit.query.get("after") or None
    try:
        page = await visit.operations.keys(**fields, after=after, limit=PAGE_SIZE, session=visit.session)  # type: ignore[arg-type]
    except ValueError as error:
        raise PageError(str(error)) from error
    shown = [each for each in page.items if visit.access.sees(each.queue)]
    return Shown("keys.html", {"keys": shown, "page": page, "after": after, "fields": fields, "states": KEY_STATES})


async def key(visit: Visit) -> Shown:
    """Show one key, and its first messages."""
    queue, name = visit.query.get("queue", ""), visit.query.get("key", "")
    if not (queue and name):
        raise PageError("A key is named by its queue and its name: choose one on the page of keys.")
    visit.check_queue(queue)
    detail = await visit.operations.key(queue, name, limit=PAGE_SIZE, session=visit.session)
    messages = [] if detail is None else visit.redact(detail.messages)
    return Shown("key.html", {"queue": queue, "name": name, "detail": detail, "messages": messages})
