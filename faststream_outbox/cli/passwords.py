"""Keeps passwords out of what is printed and logged."""

import re
from typing import Final

_HIDDEN: Final = "***"
# Where a URL has a secret: before the host, where NATS has a token or several servers, and among the options.
_IN_A_URL: Final = (
    (re.compile(r"(?<=\bnats://)[^\s/]+@"), f"{_HIDDEN}@"),
    (re.compile(r"(?<=://)([^\s/:@]*):[^\s/]+@"), rf"\1:{_HIDDEN}@"),
    (re.compile(r"([?&][^\s=&]*(?:password|secret|token)=)[^\s&]+", re.IGNORECASE), rf"\1{_HIDDEN}"),
)
# Shorter ones are found in words that have nothing to do with them.
_SHORTEST: Final = 8

_known: set[str] = set()


def remember(secret: str | None) -> None:
    """Hide this from now on, wherever it turns up."""
    if secret and len(secret) >= _SHORTEST:
        _known.add(secret)


def hide(text: str) -> str:
    """Replace the passwords of a text."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    for place, hidden in _IN_A_URL:
        text = place.sub(hidden, text)
    return text
