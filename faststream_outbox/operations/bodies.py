"""The body of a message as operators see it: decoded as its content type says, and JSON indented as it was written."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

# How many bytes of a binary body `pretty` shows.
_SHOWN_BYTES: Final = 256
# Larger bodies are shown as they are: to read and indent one holds up whatever else the process does.
MOST_INDENTED: Final = 256 * 1024
# Deeper ones too: of a body of brackets, most of the text would be indentation.
_DEEPEST: Final = 50
# Strings, brackets and signs, and what is between them: numbers, true, false and null.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+')


@dataclass(frozen=True)
class Body:
    """The body of a message, decoded as its content type says.

    Attributes:
        raw: The bytes, as they are stored.
        content_type: The header `content-type`, if there is one.
        text: The bytes as text; None if they are not UTF-8.
        data: What a handler without a type annotation gets: parsed JSON, a text, or bytes. It is parsed when it is
            first read.

    """

    raw: bytes
    content_type: str | None
    text: str | None

    @classmethod
    def of(cls, raw: bytes, content_type: str | None) -> "Body":
        """Decode the bytes of a row."""
        try:
            return cls(raw, content_type, raw.decode())
        except UnicodeDecodeError:
            return cls(raw, content_type, None)

    @cached_property
    def data(self) -> Any:
        """What a handler without a type annotation gets."""
        if self.text is None:
            return self.raw
        if self.content_type is not None and self.content_type.startswith("text/"):
            return self.text
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return self.raw if self.content_type is None else self.text

    def pretty(self) -> str:
        """Return the body for people to read: JSON indented, bytes as hexadecimal digits.

        Numbers are as they were written, and so are names that come twice. What is larger than 256 KiB is not indented.
        """
        if self.text is None:
            more = "" if len(self.raw) <= _SHOWN_BYTES else f" … ({len(self.raw):,} bytes)"
            return self.raw[:_SHOWN_BYTES].hex(" ") + more
        if len(self.raw) > MOST_INDENTED or isinstance(self.data, str | bytes):
            return self.text
        return _indented(self.text)


def _indented(text: str) -> str:
    """Return JSON with a line for each value; only whitespace and the escapes of letters differ from the text."""
    lines, level = list[str](), 0
    for part, following in pairwise((*_TOKEN.findall(text), "")):
        match part:
            case "{" | "[":
                level += 1
                if level > _DEEPEST:
                    return text
                lines += part, "" if following in "}]" else _line(level)
            case "}" | "]":
                level -= 1
                lines.append(part)
            case ",":
                lines += part, _line(level)
            case ":":
                lines.append(": ")
            case _:
                lines.append(_with_letters(part) if "\\u" in part else part)
        if following and following in "}]" and part not in "{[":
            lines.append(_line(level - 1))
    return "".join(lines)


def _line(level: int) -> str:
    return "\n" + "  " * level


def _with_letters(part: str) -> str:
    """Return a string of JSON with its letters in the place of their escapes; half a character stays an escape."""
    letters = json.dumps(json.loads(part), ensure_ascii=False)
    return letters if letters.isprintable() else part
