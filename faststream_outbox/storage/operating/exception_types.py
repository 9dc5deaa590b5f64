"""The type of the exception in the text of a dead letter, in Python and in SQL.

The default renderer writes the type first: `ValueError: no`, then the traceback. What operators give as a reason, and
texts of other renderers, have no type.
"""

import re
from typing import Final

# The type and the beginning of the traceback are in the first characters: the summary before it has at most 1,024.
_READ_CHARS: Final = 2000
# So many characters have at most so many bytes.
_READ_BYTES: Final = 4 * _READ_CHARS
_TRACEBACK: Final = "Traceback (most recent call last):"
# In the text of a head that an operator skipped, between the operator's reason and the cause of the parking.
_PARKED: Final = "\n\nparked for "
_NAME: Final = r"^(?:[A-Za-z_<][A-Za-z0-9_>]*[.])*[A-Za-z_][A-Za-z0-9_]*$"
# A name that is surely that of a type: reasons of operators are no names with a module.
_SURE_NAME: Final = "(?:Error|Exception|[.][A-Z][A-Za-z0-9_]*)$"
# The type, of a row `n` of `sql_beginning`. No expression captures a part of the text, which costs Postgres most.
SQL_TYPE: Final = (
    f"CASE WHEN n.name ~ '{_NAME}' AND NOT n.parked AND (n.traced OR n.name ~ '{_SURE_NAME}') THEN n.name END"
)


def exception_type(text: str | None) -> str | None:
    """Return the name of the type at the beginning of a text, with its module; None if the text has no type."""
    beginning = (text or "")[:_READ_CHARS]
    name = beginning.partition(":")[0].partition("\n")[0]
    if not re.fullmatch(_NAME, name) or _PARKED in beginning:
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
    """Return SQL for what the beginning of a text says: `name`, `parked` and `traced`, of which `SQL_TYPE` is made.

    Texts with the same beginning have the same type: a statement over many rows groups them first, and calculates the
    type, which costs most, once for each group.
    """
    parked = _PARKED.encode("unicode_escape").decode()
    # Each part is calculated once. Postgres counts characters slowly, and decompresses a text for each function that
    # reads it: a text that cannot be much longer than what is read is decompressed once, by `||`, and not cut.
    return f"""SELECT left(split_part(split_part(b.beginning, ':', 1), E'\\n', 1), {_READ_CHARS}) AS name,
           coalesce(nullif(strpos(b.beginning, E'{parked}'), 0) <= {_last_place(_PARKED)}, false) AS parked,
           coalesce(nullif(strpos(b.beginning, '{_TRACEBACK}'), 0) <= {_last_place(_TRACEBACK)}, false) AS traced
      FROM (SELECT CASE WHEN octet_length({text}) <= {_READ_BYTES} THEN {text} || ''
                        ELSE left({text}, {_READ_CHARS}) END AS beginning OFFSET 0) b"""


def _last_place(part: str) -> int:
    """Return the last place at which a part is wholly among the characters that are read."""
    return _READ_CHARS - len(part) + 1


def sql_has_type(text: str, name: str) -> str:
    """Return SQL for whether a text begins with this type."""
    found = f"(SELECT {sql_exception_type(text)} AS name OFFSET 0) t"
    return f"(SELECT t.name = {name} OR right(t.name, length({name}) + 1) = '.' || {name} FROM {found})"
