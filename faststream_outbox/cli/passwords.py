"""Keeps passwords out of what is printed and logged."""

import re
from typing import Final

# What stands between the user and the host of a URL.
_IN_A_URL: Final = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+@")
# Shorter ones are found in words that have nothing to do with them.
_SHORTEST: Final = 8
_HIDDEN: Final = "***"

_known: set[str] = set()


def remember(secret: str | None) -> None:
    """Hide this from now on, wherever it turns up."""
    if secret and len(secret) >= _SHORTEST:
        _known.add(secret)


def hide(text: str) -> str:
    """Replace the passwords of a text."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return _IN_A_URL.sub(rf"\1:{_HIDDEN}@", text)
