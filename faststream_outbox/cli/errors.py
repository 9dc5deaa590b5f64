"""Errors that end the program with one sentence."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import ClassVar


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
