"""Errors that end the program with one sentence, and the removal of passwords from everything that it prints."""

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import ClassVar, Final

_HIDDEN: Final = "***"
# Where a URL holds a secret: before the host (NATS: a token, or several servers), and in the query.
_SECRETS_OF_URLS: Final = (
    (re.compile(r"(?<=\bnats://)[^\s/]+@"), f"{_HIDDEN}@"),
    (re.compile(r"(?<=://)([^\s/:@]*):[^\s/]+@"), rf"\1:{_HIDDEN}@"),
    (re.compile(r"([?&][^\s=&]*(?:password|secret|token)=)[^\s&]+", re.IGNORECASE), rf"\1{_HIDDEN}"),
)
# A shorter secret may be part of an ordinary word, and hiding it would spoil other text.
_SHORTEST_SECRET: Final = 8

_secrets: set[str] = set()


class ProgramError(Exception):
    """Something that the program needs is missing: a table, a server, a package."""

    exit_code: ClassVar[int] = 1


class UsageError(ProgramError):
    """A setting is wrong."""

    exit_code: ClassVar[int] = 2


def suggest(name: str, known: Collection[str]) -> str:
    """Return the sentence that follows an unknown name: the nearest known one, or all of them."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(known))}."


def remember_secret(secret: str) -> str:
    """Record a text that `hide` shall replace from now on, and return it."""
    if len(secret) >= _SHORTEST_SECRET:
        _secrets.add(secret)
    return secret


def hide(text: str) -> str:
    """Return the text without passwords."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    for place, hidden in _SECRETS_OF_URLS:
        text = place.sub(hidden, text)
    return text
