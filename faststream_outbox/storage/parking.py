"""Store why a row is parked, or failed last, among its headers, remove it and read it; in Python and in SQL.

A parked row is due at `infinity`, so that no claim takes it. The columns of the table are fixed, therefore the cause is
in the headers under a reserved name. Headers that are no JSON object are kept inside the cause. A row that waits for
its retry has a cause without a reason: the exception alone, in a line.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

# The reserved name of the header.
PARKED: Final = "outbox-parked"
# The reason of a row that an operator parked, in the place of a `FailureReason`.
BY_OPERATOR: Final = "operator"
# In the cause of a row that is no message: it only keeps its key parked until an operator ends that.
HOLDS: Final = "holds"
# In the text of a head that an operator skipped, after the operator's reason.
LAST_FAILURE: Final = "\n\nlast failure: "
PARKED_FOR: Final = "\n\nparked for "
# The longest line in a list for people to read.
_LONGEST_LINE: Final = 200


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a row is parked: a failure reason or `BY_OPERATOR`, and the exception or what the operator gave as reason.

    Of a row that is retried there is only the exception. An operator who parks such a row gives a reason in its place,
    and the exception is kept as `failure`.

    `parked_at` and `due` (when it was due before) are epoch seconds by the database's clock. A row that `holds` its key
    is no message: it is never delivered, and deleted when the key is released.
    """

    reason: str | None = None
    exception: str | None = None
    parked_at: float | None = None
    due: float | None = None
    holds: bool = False
    failure: str | None = None

    def __str__(self) -> str:
        return ": ".join(text for text in (self.reason, self.exception) if text)

    @property
    def last_failure(self) -> str | None:
        """What failed last, of a row that is retried, or was when an operator parked it."""
        return self.failure if self.reason else self.exception

    @property
    def line(self) -> str:
        """The first line of the text: an exception's text begins with its type and message."""
        first = str(self).partition("\n")[0].rstrip()
        return first if len(first) <= _LONGEST_LINE else f"{first[: _LONGEST_LINE - 1]}…"


def with_failure(headers_json: str | None, failure: str) -> str:
    """Return the headers with what failed last."""
    return _with(headers_json, {"exception": failure})


def with_cause(headers_json: str | None, cause: Cause) -> str:
    """Return the headers with the cause."""
    stored: dict[str, Any] = {"reason": cause.reason, "exception": cause.exception, "parked_at": cause.parked_at}
    if cause.due is not None:
        stored["due"] = cause.due
    if cause.holds:
        stored[HOLDS] = True
    if cause.failure:
        stored["failure"] = cause.failure
    return _with(headers_json, stored)


def _with(headers_json: str | None, stored: dict[str, Any]) -> str:
    headers = strip_cause(_loads(headers_json))
    if isinstance(headers, dict):
        return json.dumps({**headers, PARKED: stored}, ensure_ascii=False)
    return json.dumps({PARKED: {**stored, "headers": headers}}, ensure_ascii=False)


def without_cause(headers_json: str | None) -> str | None:
    """Return the headers without the cause, as they were published."""
    if headers_json is None or PARKED not in headers_json:
        return headers_json
    headers = strip_cause(_loads(headers_json))
    return None if headers is None else json.dumps(headers, ensure_ascii=False)


def strip_cause(headers: Any) -> Any:
    """Return parsed headers without the cause."""
    if not isinstance(headers, dict) or not isinstance(stored := headers.get(PARKED), dict):
        return headers
    if "headers" in stored:
        return stored["headers"]
    return {name: value for name, value in headers.items() if name != PARKED}


def cause_in(headers_json: str | None) -> Cause:
    """Return the cause in the headers; it is empty for a row that was parked by an UPDATE."""
    headers = _loads(headers_json)
    stored = headers.get(PARKED) if isinstance(headers, dict) else None
    if not isinstance(stored, dict):
        return Cause()
    texts = (stored.get(name) for name in ("reason", "exception", "failure"))
    times = (stored.get(name) for name in ("parked_at", "due"))
    reason, exception, failure = (text if isinstance(text, str) else None for text in texts)
    parked_at, due = (float(at) if isinstance(at, int | float) else None for at in times)
    return Cause(reason, exception, parked_at, due, holds=stored.get(HOLDS) is True, failure=failure)


def skipped_text(reason: str, cause: Cause) -> str:
    """Return the text of a head that an operator skips: why, what failed last, and what it was parked for."""
    failed = f"{LAST_FAILURE}{cause.last_failure}" if cause.last_failure else ""
    return f"{reason}{failed}{PARKED_FOR}{cause}" if cause.reason else f"{reason}{failed}"


def _loads(headers_json: str | None) -> Any:
    return None if headers_json is None else json.loads(headers_json)


# The SQL for the same operations, on the column of a row.


def sql_cause(headers: str) -> str:
    """Return SQL for the cause; NULL if there is none."""
    return f"({headers} -> '{PARKED}')"


def sql_text(cause: str, name: str) -> str:
    """Return SQL for a text in the cause; NULL if there is none, or an empty one."""
    return f"nullif({cause} ->> '{name}', '')"


def sql_number(cause: str, name: str) -> str:
    """Return SQL for a number in the cause; NULL if there is none, or a value of another type."""
    return f"(CASE WHEN jsonb_typeof({cause} -> '{name}') = 'number' THEN ({cause} ->> '{name}')::float8 END)"


def sql_skipped_text(reason: str, cause: str) -> str:
    """Return SQL for the text of a head that an operator skips."""
    parked, exception, failure = (sql_text(cause, name) for name in ("reason", "exception", "failure"))
    failed, parked_for = (each.encode("unicode_escape").decode() for each in (LAST_FAILURE, PARKED_FOR))
    return f"""{reason} || coalesce(E'{failed}' || CASE WHEN {parked} IS NULL THEN {exception} ELSE {failure} END, '')
         || coalesce(E'{parked_for}' || {parked} || coalesce(': ' || {exception}, ''), '')"""


def sql_holds(headers: str) -> str:
    """Return SQL for whether a row is no message, but holds its key."""
    return f"({headers} -> '{PARKED}' -> '{HOLDS}' IS NOT DISTINCT FROM 'true'::jsonb)"


def sql_with_cause(headers: str, cause: str) -> str:
    """Return SQL for the headers with a cause, in place of the one that they have."""
    inside = f"({sql_cause(headers)} -> 'headers')"
    return f"""CASE WHEN jsonb_typeof({headers}) = 'object' AND {inside} IS NULL
         THEN {headers} || jsonb_build_object('{PARKED}', {cause})
         ELSE jsonb_build_object('{PARKED}', {cause} || jsonb_build_object('headers', coalesce({inside}, {headers})))
         END"""


def sql_with_failure(headers: str, failure: str) -> str:
    """Return SQL for the headers with what failed last; as they are, if that is NULL."""
    cause = f"jsonb_build_object('exception', {failure})"
    return f"CASE WHEN {failure} IS NULL THEN {headers} ELSE {sql_with_cause(headers, cause)} END"


def sql_without_cause(headers: str) -> str:
    """Return SQL for the headers without the cause."""
    cause = sql_cause(headers)
    return f"""CASE WHEN jsonb_typeof({cause}) IS DISTINCT FROM 'object' THEN {headers}
         WHEN jsonb_exists({cause}, 'headers') THEN nullif({cause} -> 'headers', 'null'::jsonb)
         ELSE {headers} - '{PARKED}'::text END"""
