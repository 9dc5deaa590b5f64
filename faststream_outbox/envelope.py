"""The headers of a message: what is put among them on its way into a row, and on its way from there to elsewhere."""

from collections.abc import Mapping
from typing import Any, Final

from faststream_outbox.storage import OutboxRow
from faststream_outbox.storage.checks import check_name

# The names under which a row's headers hold what FastStream keeps apart from them.
CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"

# What a relay adds to the headers of a row: `relay_headers` says how each is filled.
OUTBOX_ID: Final = "outbox_id"
OUTBOX_SOURCE: Final = "outbox_source"
OUTBOX_KEY: Final = "outbox_key"
OUTBOX_SEQUENCE: Final = "outbox_sequence"
# And under this one FastStream's brokers look for an id that the sender gave.
MESSAGE_ID: Final = "message_id"

# All that tells of one message and of no other: an answer that carried it on would be taken for that message.
THE_MESSAGES_OWN: Final = frozenset(
    {CONTENT_TYPE, CORRELATION_ID, REPLY_TO, OUTBOX_ID, OUTBOX_SOURCE, OUTBOX_KEY, OUTBOX_SEQUENCE, MESSAGE_ID}
)


def row_identity(row: OutboxRow) -> str:
    """Tell a row from every other that its table has held or will hold.

    Its number alone would not: a table that is emptied, or restored from a backup, counts from an earlier number
    again, and an inbox would skip the new rows as seen. So the instant of its making, which never changes, is added.
    """
    return f"{row.id}-{row.created_epoch:.6f}"


def relay_headers(row: OutboxRow, *, source: str) -> dict[str, str]:
    """Name a row for those whom it is relayed to; the same at each relaying. They go over the headers of the row.

    `outbox_id` is one row's among all outboxes: rows of two may have one number, and whoever receives from both would
    skip one of them. `source` therefore names the outbox, for good: the service that it belongs to, say. `outbox_key`
    and `outbox_sequence` go with a row that has a key. Numbers of a key grow in the order of its commits, with gaps,
    and are comparable within a source and a queue.

    Example:
        relay_headers(row, source="shop")
        # {"outbox_id": "shop/7-1767225600.000000", "outbox_source": "shop", "outbox_key": "42", "outbox_sequence": "7"}

    """
    headers = {OUTBOX_ID: f"{check_name('source', source)}/{row_identity(row)}", OUTBOX_SOURCE: source}
    if row.entity_key is not None:
        headers |= {OUTBOX_KEY: row.entity_key, OUTBOX_SEQUENCE: str(row.id)}
    return headers


def seal(
    headers: Mapping[str, Any] | None, *, content_type: str | None, correlation_id: str | None, reply_to: str | None
) -> dict[str, Any] | None:
    """Put what FastStream keeps apart from the headers among them; None when there is nothing at all.

    No correlation id is made up here: a message without one is known by its row's id, which costs no space.
    """
    sealed = dict(headers or {})
    _put(sealed, CONTENT_TYPE, content_type, "Leave it out of headers, or give the body as bytes to label it yourself.")
    _put(sealed, CORRELATION_ID, correlation_id, "Give it once, as correlation_id=….")
    _put(sealed, REPLY_TO, reply_to, "Give it once, as reply_to=….")
    return sealed or None


def _put(headers: dict[str, Any], name: str, value: str | None, advice: str) -> None:
    if not value:
        return
    if headers.setdefault(name, value) != value:
        raise ValueError(f"headers[{name!r}] is {headers[name]!r} where {value!r} belongs. {advice}")
