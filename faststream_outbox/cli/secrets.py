"""Secrets: read from a variable, a file or a command, and removed from everything that the program prints."""

import asyncio
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic_core import CoreSchema, core_schema

_HIDDEN: Final = "***"
# Where an address in a text holds a secret: before the host (NATS: a token, or several servers), and in the query. A
# password may hold every character, so all is hidden up to the last @ of a word.
_SECRETS_OF_ADDRESSES: Final = (
    (re.compile(r"(?<=\bnats://)(?!\*\*\*@)\S+@"), f"{_HIDDEN}@"),
    (re.compile(r"(?<=\btls://)(?!\*\*\*@)\S+@"), f"{_HIDDEN}@"),
    (re.compile(r"(?<=://)([^\s/:@]*):\S+@"), rf"\1:{_HIDDEN}@"),
    # Without a scheme: user:password@host.
    (re.compile(r"""(?<![^\s'"(=])[^\s:/@'"]+:(?!//)\S+@"""), f"{_HIDDEN}@"),
    (re.compile(r"([?&][^\s=&]*(?:pass|pwd|secret|token)[^\s=&]*=)[^\s&]+", re.IGNORECASE), rf"\1{_HIDDEN}"),
)
_SECRET_NAME: Final = re.compile(r"pass|pwd|secret|token|credential|jaas", re.IGNORECASE)
# A shorter secret may be part of an ordinary word, and hiding it would spoil other text.
_SHORTEST_SECRET: Final = 8
# A command may return another secret each time; those before the last of these are no longer valid.
_MOST_SECRETS: Final = 200
# Tools of cloud providers ask a server first, which takes seconds.
_COMMAND_SECONDS: Final = 30.0

# Known secrets, and what is shown instead of each; the oldest first.
_secrets: dict[str, str] = {}


class SecretError(OSError):
    """A secret cannot be read."""


def remember_secret(secret: str, shown: str = _HIDDEN) -> str:
    """Record a text that `hide` shall replace from now on, and return it."""
    if len(secret) >= _SHORTEST_SECRET:
        _secrets.pop(secret, None)
        _secrets[secret] = shown
        if len(_secrets) > _MOST_SECRETS:
            del _secrets[next(iter(_secrets))]
    return secret


def remember_options(options: object, name: str = "") -> None:
    """Record the texts whose names say that they are secrets, also inside tables and lists."""
    match options:
        case dict():
            for key, value in options.items():
                remember_options(value, str(key))
        case list():
            for value in options:
                remember_options(value, name)
        case str() if is_secret_name(name):
            remember_secret(options)


def is_secret_name(name: str) -> bool:
    """Return whether an option of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def hide(text: str) -> str:
    """Return the text without secrets."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _secrets[secret])
    for place, hidden in _SECRETS_OF_ADDRESSES:
        text = place.sub(hidden, text)
    return text


def hide_all(value: Any) -> Any:
    """Return a value for JSON without secrets, also inside mappings and sequences."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return hide(value)
        case Mapping():
            return {hide(str(name)): hide_all(each) for name, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [hide_all(each) for each in value]
    return hide(str(value))


class Secret:
    """A password that is read again for every connection, because a file or a command may return another one then.

    Args:
        source: `env:NAME`, `file:PATH` or `command:PROGRAM ARGUMENTS`; any other text is the password itself.

    """

    def __init__(self, source: str) -> None:
        self._kind, self._at = _split(source)

    def __repr__(self) -> str:
        return f"Secret({_HIDDEN!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> CoreSchema:
        return core_schema.is_instance_schema(cls)

    @property
    def changes(self) -> bool:
        """Whether a later read may return another text."""
        return self._kind in ("file", "command")

    def read(self) -> str:
        """Return the present text; raise `SecretError` if there is none."""
        match self._kind:
            case "env":
                text = os.environ.get(self._at, "")
            case "file":
                text = _read_file(self._at)
            case "command":
                text = _run(self._at)
            case _:
                text = self._at
        if not text and self._kind:
            raise SecretError(f"{self._name} is empty, where a password should be.")
        return remember_secret(text)

    async def read_in_thread(self) -> str:
        """Return the present text without blocking the event loop."""
        return await asyncio.to_thread(self.read) if self.changes else self.read()

    @property
    def _name(self) -> str:
        # The arguments of a command are left out: they may be secret.
        return f"the command {_program(self._at)}" if self._kind == "command" else f"{self._kind}:{self._at}"


def _split(source: str) -> tuple[str, str]:
    kind, colon, at = source.partition(":")
    return (kind, at.strip()) if colon and kind in ("env", "file", "command") else ("", source)


def _read_file(path: str) -> str:
    try:
        # An editor ends a file with a line break, which is no part of a password.
        return Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SecretError(f"{path} cannot be read: {reason}.") from None


def _run(command: str) -> str:
    try:
        words = shlex.split(command)  # without a shell: the user can name one
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)  # noqa: S603 - given by the user
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        # The text of these errors holds the arguments.
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise SecretError(f"The command {_program(command)} cannot be run: {reason}.") from None
    if done.returncode != 0:
        # What it printed is left out: it may be a secret.
        raise SecretError(f"The command {_program(command)} ended with {done.returncode}; run it by hand to see why.")
    return done.stdout.strip()


def _program(command: str) -> str:
    return command.split(maxsplit=1)[0] if command else "(none)"
