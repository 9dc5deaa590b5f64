"""Why a row is parked, kept among its headers: put there, taken out again, and read.

A parked row is due at the end of time (`infinity`), so that no claim takes it. The columns of the table are fixed, so
its cause lies in the headers under a reserved name. Headers that are no JSON object are kept inside the cause.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

# The reserved name.
PARKED: Final = "outbox-parked"
# What the cause says where an operator parked the row, in the place of a `FailureReason`.
BY_OPERATOR: Final = "operator"
# A line of a list, for people to read.
_LONGEST_LINE: Final = 200


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a row is parked: a failure reason, or the operator's hand; what was raised, or what the operator said.

    `parked_at` and `due`, when it was due before, are epoch seconds by the database's clock.
    """

    reason: str | None = None
    exception: str | None = None
    parked_at: float | None = None
    due: float | None = None

    def __str__(self) -> str:
        return ": ".join(text for text in (self.reason, self.exception) if text)

    @property
    def line(self) -> str:
        """The same in a line: what was raised says first what it is, and then where it came from."""
        first = str(self).partition("\n")[0].rstrip()
        return first if len(first) <= _LONGEST_LINE else f"{first[: _LONGEST_LINE - 1]}…"


def with_cause(headers_json: str | None, cause: Cause) -> str:
    """Put the cause among the headers."""
    headers = _loads(headers_json)
    told: dict[str, Any] = {"reason": cause.reason, "exception": cause.exception, "parked_at": cause.parked_at}
    if cause.due is not None:
        told["due"] = cause.due
    if isinstance(headers, dict):
        return json.dumps({**headers, PARKED: told}, ensure_ascii=False)
    return json.dumps({PARKED: {**told, "headers": headers}}, ensure_ascii=False)


def without_cause(headers_json: str | None) -> str | None:
    """Take the cause out of the headers, which are then what they were."""
    if headers_json is None or PARKED not in headers_json:
        return headers_json
    headers = strip_cause(_loads(headers_json))
    return None if headers is None else json.dumps(headers, ensure_ascii=False)


def strip_cause(headers: Any) -> Any:
    """Take the cause out of headers that were read."""
    if not isinstance(headers, dict) or not isinstance(told := headers.get(PARKED), dict):
        return headers
    if "headers" in told:
        return told["headers"]
    return {name: value for name, value in headers.items() if name != PARKED}


def cause_in(headers_json: str | None) -> Cause:
    """Read the cause; nothing is known of a row that was parked by hand."""
    headers = _loads(headers_json)
    told = headers.get(PARKED) if isinstance(headers, dict) else None
    if not isinstance(told, dict):
        return Cause()
    texts = (told.get(name) for name in ("reason", "exception"))
    times = (told.get(name) for name in ("parked_at", "due"))
    reason, exception = (text if isinstance(text, str) else None for text in texts)
    parked_at, due = (float(at) if isinstance(at, int | float) else None for at in times)
    return Cause(reason, exception, parked_at, due)


def _loads(headers_json: str | None) -> Any:
    return None if headers_json is None else json.loads(headers_json)


# The same in SQL, on the column of a row.


def sql_cause(headers: str) -> str:
    """Write what finds the cause; NULL where there is none."""
    return f"({headers} -> '{PARKED}')"


def sql_number(cause: str, name: str) -> str:
    """Write what reads a number of the cause; NULL where there is none, whatever is there instead."""
    return f"(CASE WHEN jsonb_typeof({cause} -> '{name}') = 'number' THEN ({cause} ->> '{name}')::float8 END)"


def sql_with_cause(headers: str, cause: str) -> str:
    """Write what puts a cause among the headers."""
    return f"""CASE WHEN jsonb_typeof({headers}) = 'object'
         THEN {headers} || jsonb_build_object('{PARKED}', {cause})
         ELSE jsonb_build_object('{PARKED}', {cause} || jsonb_build_object('headers', {headers})) END"""


def sql_without_cause(headers: str) -> str:
    """Write what takes the cause out of the headers."""
    cause = sql_cause(headers)
    return f"""CASE WHEN jsonb_typeof({cause}) IS DISTINCT FROM 'object' THEN {headers}
         WHEN jsonb_exists({cause}, 'headers') THEN nullif({cause} -> 'headers', 'null'::jsonb)
         ELSE {headers} - '{PARKED}'::text END"""
