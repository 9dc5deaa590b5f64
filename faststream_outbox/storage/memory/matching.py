"""Compare the rows in memory with operators' filters."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from faststream_outbox.storage.memory.table import DeadRow
from faststream_outbox.storage.nodes import holder_name
from faststream_outbox.storage.operating.exception_types import has_type
from faststream_outbox.storage.operating.filters import DeadLetterFilter, MessageFilter
from faststream_outbox.storage.ordering.states import state_of
from faststream_outbox.storage.rows import OutboxRow

Heads = Mapping[tuple[str, str | None], OutboxRow]


def message_matches(row: OutboxRow, where: MessageFilter | None, now: float, heads: Heads) -> bool:
    """Return whether a row of the outbox has all that the filter gives; `heads` are the first rows of all keys."""
    return where is None or all(
        _state(row, now, heads) == value if name == "state" else _MESSAGES[name](row, value) for name, value in where
    )


def _state(row: OutboxRow, now: float, heads: Heads) -> str:
    """Return the state of a row; one that is due is blocked if the head of its key cannot be claimed."""
    state, head = state_of(row, now), heads.get((row.queue, row.entity_key))
    return "blocked" if state == "ready" and head is not None and state_of(head, now) != "ready" else state


def dead_letter_matches(dead: DeadRow, where: DeadLetterFilter | None) -> bool:
    """Return whether a dead letter has all that the filter gives."""
    return where is None or all(_DEAD_LETTERS[name](dead, value) for name, value in where)


def _header(headers_json: str | None, name: str) -> str | None:
    """Return a header as text, as `->>` of Postgres does."""
    headers = None if headers_json is None else json.loads(headers_json)
    value = headers.get(name) if isinstance(headers, dict) else None
    return value if value is None or isinstance(value, str) else json.dumps(value)


_MESSAGES: Final[Mapping[str, Callable[[OutboxRow, Any], bool]]] = {
    "queue": lambda row, value: bool(row.queue == value),
    "key": lambda row, value: bool(row.entity_key == value),
    "correlation_id": lambda row, value: bool(_header(row.headers_json, "correlation_id") == value),
    "header": lambda row, value: bool(_header(row.headers_json, value[0]) == value[1]),
    "timer_id": lambda row, value: bool(row.timer_id == value),
    "node": lambda row, value: bool(holder_name(row.acquired_token) == value),
    "published_after": lambda row, value: bool(row.created_epoch >= value.timestamp()),
    "published_before": lambda row, value: bool(row.created_epoch < value.timestamp()),
}
_DEAD_LETTERS: Final[Mapping[str, Callable[[DeadRow, Any], bool]]] = {
    "queue": lambda dead, value: bool(dead.row.queue == value),
    "key": lambda dead, value: bool(dead.row.entity_key == value),
    "reason": lambda dead, value: bool(dead.failure_reason == value),
    "exception_type": lambda dead, value: has_type(dead.last_exception, value),
    "correlation_id": lambda dead, value: bool(_header(dead.row.headers_json, "correlation_id") == value),
    "failed_after": lambda dead, value: bool(dead.failed_at >= value),
    "failed_before": lambda dead, value: bool(dead.failed_at < value),
}
