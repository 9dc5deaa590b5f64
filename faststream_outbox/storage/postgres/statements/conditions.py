"""The conditions of operators' filters as SQL, for rows `o` of the outbox and rows `d` of the dead letters."""

from datetime import datetime
from typing import Any, Final

from faststream_outbox.storage.operating.exception_types import sql_has_type
from faststream_outbox.storage.operating.filters import DeadLetterFilter, MessageFilter
from faststream_outbox.storage.ordering.key_cursor import LAST_ID
from faststream_outbox.storage.ordering.states import STATE

# The state of a row `h`.
HEAD_STATE: Final = STATE.replace("o.", "h.")

_MESSAGES: Final = {
    "queue": "o.queue = :queue::text",
    "key": "o.entity_key = :key::text",
    "correlation_id": "o.headers ->> 'correlation_id' = :correlation_id::text",
    "header": "o.headers ->> :header_name::text = :header_value::text",
    "timer_id": "o.timer_id = :timer_id::text",
    "node": "CASE WHEN substr(o.acquired_token::text, 15, 1) = '8' THEN left(o.acquired_token::text, 13) "
    "WHEN o.acquired_token IS NOT NULL THEN 'unknown' END = :node::text",
    "published_after": "o.created_at >= to_timestamp(:published_after::float8)",
    "published_before": "o.created_at < to_timestamp(:published_before::float8)",
}
_DEAD_LETTERS: Final = {
    "queue": "d.queue = :queue::text",
    "key": "d.entity_key = :key::text",
    "reason": "d.failure_reason = :reason::text",
    "exception_type": sql_has_type("d.last_exception", ":exception_type::text"),
    "correlation_id": "d.headers ->> 'correlation_id' = :correlation_id::text",
    "failed_after": "d.failed_at >= to_timestamp(:failed_after::float8)",
    "failed_before": "d.failed_at < to_timestamp(:failed_before::float8)",
}


def condition(where: MessageFilter | DeadLetterFilter | None, outbox: str) -> str:
    """Return the condition of all that the filter gives; its text depends on which names are given, on no value."""
    conditions = _DEAD_LETTERS if isinstance(where, DeadLetterFilter) else {**_MESSAGES, "state": _state(outbox)}
    return " AND ".join(conditions[name] for name in names(where)) or "true"


def head_before(outbox: str, columns: str) -> str:
    """Return SQL for the head `h` of the key of a row `o`, by one probe; nothing if `o` is the head, or has no key.

    Both ends of the range name all columns of the index: see `_RANGES` of the searches.
    """
    return f"""SELECT {columns} FROM {outbox} h WHERE h.entity_key IS NOT NULL
      AND (h.queue, h.entity_key, h.id) > (o.queue, o.entity_key, {-LAST_ID})
      AND (h.queue, h.entity_key, h.id) < (o.queue, o.entity_key, o.id) ORDER BY h.queue, h.entity_key, h.id LIMIT 1"""


def _state(outbox: str) -> str:
    # The head is looked for only if the state depends on it.
    blocked = head_before(outbox, f"({HEAD_STATE}) <> 'ready'")
    return f"""CASE WHEN :state::text NOT IN ('ready', 'blocked') THEN ({STATE}) = :state::text
         WHEN ({STATE}) <> 'ready' THEN false
         ELSE coalesce(({blocked}), false) = (:state::text = 'blocked') END"""


def names(where: MessageFilter | DeadLetterFilter | None) -> tuple[str, ...]:
    """Return the names that the filter gives."""
    return () if where is None else tuple(name for name, _ in where)


def parameters(where: MessageFilter | DeadLetterFilter | None) -> dict[str, Any]:
    """Return the parameters of `condition`."""
    values: dict[str, Any] = {}
    for name, value in () if where is None else where:
        if name == "header":
            values["header_name"], values["header_value"] = value
        else:
            values[name] = value.timestamp() if isinstance(value, datetime) else value
    return values
