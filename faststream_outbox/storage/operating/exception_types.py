"""The type of the exception in the text of a dead letter, in Python and in SQL.

The default renderer writes the type first: `ValueError: no`, then the traceback. The text of a head that an operator
skipped begins with the operator's reason; what failed comes behind it. Texts of other renderers have no type.
"""

import re
from typing import Final

from faststream_outbox.storage.parking import LAST_FAILURE, PARKED_FOR

# The type and the beginning of the traceback are in the first characters: the summary before it has at most 1,024.
_READ_CHARS: Final = 2000
# So many characters have at most so many bytes.
_READ_BYTES: Final = 4 * _READ_CHARS
_TRACEBACK: Final = "Traceback (most recent call last):"
_SKIPPED: Final = (LAST_FAILURE, PARKED_FOR)
# The type of what failed before an operator skipped the head. One who parked it gave a reason, which has none.
_SKIPPED_NAME: Final = r"\n\n(?:last failure|parked for (?:max_deliveries|retry_terminal|rejected)): ([^:\n]*)"
_NAME: Final = r"^(?:[A-Za-z_<][A-Za-z0-9_>]*[.])*[A-Za-z_][A-Za-z0-9_]*$"
# A name that is surely that of a type: reasons of operators are no names with a module.
_SURE_NAME: Final = "(?:Error|Exception|[.][A-Z][A-Za-z0-9_]*)$"
# The type, of a row `n` of `sql_beginning`.
SQL_TYPE: Final = f"CASE WHEN n.name ~ '{_NAME}' AND (n.traced OR n.name ~ '{_SURE_NAME}') THEN n.name END"


def exception_type(text: str | None) -> str | None:
    """Return the name of the type at the beginning of a text, with its module; None if the text has no type."""
    beginning = (text or "")[:_READ_CHARS]
    if any(each in beginning for each in _SKIPPED):
        found = re.search(_SKIPPED_NAME, beginning)
        name = found[1] if found else ""
    else:
        name = beginning.partition(":")[0].partition("\n")[0]
    if not re.fullmatch(_NAME, name):
        return None
    return name if re.search(_SURE_NAME, name) or _TRACEBACK in beginning else None


def has_type(text: str | None, name: str) -> bool:
    """Return whether a text begins with this type; the name may leave out the module."""
    found = exception_type(text)
    return found is not None and (found == name or found.endswith(f".{name}"))


def sql_exception_type(text: str) -> str:
    """Return SQL for the name of the type; NULL if the text has none."""
    return f"(SELECT {SQL_TYPE} FROM ({sql_beginning(text)} OFFSET 0) n)"


def sql_beginning(text: str) -> str:
    """Return SQL for what the beginning of a text says: `name` and `traced`, of which `SQL_TYPE` is made.

    Texts with the same beginning have the same type: a statement over many rows groups them first, and calculates the
    type, which costs most, once for each group.
    """
    skipped = " OR ".join(_has(each) for each in _SKIPPED)
    # Each part is calculated once. Postgres counts characters slowly, and decompresses a text for each function that
    # reads it: a text that cannot be much longer than what is read is decompressed once, by `||`, and not cut. To
    # capture a part by an expression costs most: only what operators skipped needs that.
    return f"""SELECT CASE WHEN {skipped}
                THEN substring(left(b.beginning, {_READ_CHARS}) FROM '{_SKIPPED_NAME}')
                ELSE left(split_part(split_part(b.beginning, ':', 1), E'\\n', 1), {_READ_CHARS}) END AS name,
           {_has(_TRACEBACK)} AS traced
      FROM (SELECT CASE WHEN octet_length({text}) <= {_READ_BYTES} THEN {text} || ''
                        ELSE left({text}, {_READ_CHARS}) END AS beginning OFFSET 0) b"""


def _has(part: str) -> str:
    """Return SQL for whether a part is wholly among the characters of `b.beginning` that are read."""
    text = part.encode("unicode_escape").decode()
    return f"coalesce(nullif(strpos(b.beginning, E'{text}'), 0) <= {_READ_CHARS - len(part) + 1}, false)"


def sql_has_type(text: str, name: str) -> str:
    """Return SQL for whether a text begins with this type."""
    found = f"(SELECT {sql_exception_type(text)} AS name OFFSET 0) t"
    return f"(SELECT t.name = {name} OR right(t.name, length({name}) + 1) = '.' || {name} FROM {found})"
