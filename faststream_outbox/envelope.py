"""The headers of a message: those stored in a row, and those added when a row is sent to another broker."""

from collections.abc import Mapping
from typing import Any, Final

from faststream_outbox.storage import OutboxRow
from faststream_outbox.storage.checks import check_name

# The headers of a row that hold what FastStream keeps beside the headers.
CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"

# The headers that a relay adds; `relay_headers` fills them.
OUTBOX_ID: Final = "outbox_id"
OUTBOX_SOURCE: Final = "outbox_source"
OUTBOX_KEY: Final = "outbox_key"
OUTBOX_SEQUENCE: Final = "outbox_sequence"
# The header in which FastStream's brokers look for the sender's id.
MESSAGE_ID: Final = "message_id"

# Headers that describe one message only: a handler's answer that copied them would be taken for that message.
PER_MESSAGE_HEADERS: Final = frozenset(
    {CONTENT_TYPE, CORRELATION_ID, REPLY_TO, OUTBOX_ID, OUTBOX_SOURCE, OUTBOX_KEY, OUTBOX_SEQUENCE, MESSAGE_ID}
)


def row_identity(row: OutboxRow) -> str:
    """Return an id that no other row of the table has had or will have.

    The row's id alone is not enough: a table that is emptied or restored from a backup repeats ids, and an inbox would
    skip the new rows as seen. Therefore the creation time, which never changes, is added.
    """
    return f"{row.id}-{row.created_epoch:.6f}"


def outbox_id(row: OutboxRow, *, source: str) -> str:
    """Return the id of a row for other brokers: no row of another outbox has it."""
    return f"{check_name('source', source)}/{row_identity(row)}"


def sent_correlation_id(headers: Mapping[str, Any], own_id: str) -> str:
    """Return the correlation id of a row for other brokers: that of its headers, or else its `outbox_id`."""
    given = headers.get(CORRELATION_ID)
    return own_id if given is None or given == "" else str(given)


def inherited_correlation_id(correlation_id: str | None, row: OutboxRow, *, source: str) -> str | None:
    """Return the correlation id for other brokers of an answer to a row: the row's, if it inherited the bare id.

    Rows of other outboxes have the same bare id.
    """
    if correlation_id != str(row.id):
        return correlation_id
    return sent_correlation_id(row.headers or {}, outbox_id(row, source=source))


def relay_headers(row: OutboxRow, *, source: str) -> dict[str, str]:
    """Return the headers that identify a row for other brokers; they are the same each time, and replace the row's own.

    `outbox_id` is unique among all outboxes: rows of two outboxes may have the same id, and a consumer of both would
    skip one of them. `source` therefore names the outbox, for example by its service, and must never change. A row with
    a key also has `outbox_key` and `outbox_sequence`. Sequence numbers of a key grow in the order of its commits, with
    gaps, and are comparable within a source and a queue.

    Example:
        relay_headers(row, source="shop")
        # {"outbox_id": "shop/7-1767225600.000000", "outbox_source": "shop", "outbox_key": "42", "outbox_sequence": "7"}

    """
    headers = {OUTBOX_ID: outbox_id(row, source=source), OUTBOX_SOURCE: source}
    if row.entity_key is not None:
        headers |= {OUTBOX_KEY: row.entity_key, OUTBOX_SEQUENCE: str(row.id)}
    return headers


def text_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return headers as text without those that are None: a row's headers hold any JSON, most brokers accept text."""
    return {
        name: value if isinstance(value, str) else str(value) for name, value in headers.items() if value is not None
    }


def stored_headers(
    headers: Mapping[str, Any] | None, *, content_type: str | None, correlation_id: str | None, reply_to: str | None
) -> dict[str, Any] | None:
    """Return the headers of a row: the user's, and what FastStream keeps beside them; None when there are none.

    No correlation id is generated: a message without one uses its row's id, which takes no space.
    """
    stored = dict(headers or {})
    _put(stored, CONTENT_TYPE, content_type, "Leave it out of headers, or give the body as bytes to label it yourself.")
    _put(stored, CORRELATION_ID, correlation_id, "Give it once, as correlation_id=….")
    _put(stored, REPLY_TO, reply_to, "Give it once, as reply_to=….")
    return stored or None


def _put(headers: dict[str, Any], name: str, value: str | None, advice: str) -> None:
    if value and headers.setdefault(name, value) != value:
        raise ValueError(f"headers[{name!r}] is {headers[name]!r} and differs from {value!r}. {advice}")
