"""The file of a relay: TOML, with the names of the options."""

import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from faststream_outbox.cli.errors import UsageError

_TEXT, _TABLE, _NUMBER, _YES_NO = (str,), (dict,), (int, float), (bool,)
# What each key holds; `to` and `routes` are tables, told below.
_KEYS: Final[Mapping[str, tuple[type, ...]]] = {
    "dsn": _TEXT,
    "to": _TEXT + _TABLE,
    "routes": _TABLE,
    "source": _TEXT,
    "table": _TEXT,
    "schema": _TEXT,
    "dlq_table": _TEXT,
    "shards_table": _TEXT,
    "ordering": _TEXT,
    "shards": (int,),
    "on_dead": _TEXT,
    "cloudevents": _YES_NO,
    "lease_ttl": _NUMBER,
    "graceful_timeout": _NUMBER,
    "log_level": _TEXT,
    "log_format": _TEXT,
    "progress": _YES_NO,
    "progress_interval": _NUMBER,
    "health": _TEXT,
}
_TO: Final[Mapping[str, tuple[type, ...]]] = {"url": _TEXT, "options": _TABLE, "security": _TABLE}
_WORDS: Final[Mapping[type, str]] = {
    str: "a string",
    dict: "a table",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}


def read_file(path: Path) -> dict[str, Any]:
    """Read the settings of a file, by their names; a key may be written with hyphens, as its option is."""
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}.") from error
    settings = {name.replace("-", "_"): value for name, value in found.items()}
    _check(path, "", settings, _KEYS)
    if isinstance(settings.get("to"), dict):
        _check(path, "to.", settings["to"], _TO)
    for queue, destination in settings.get("routes", {}).items():
        if not isinstance(destination, str):
            raise UsageError(f"{path}: the route of queue {queue!r} is a string, not {destination!r}.")
    return settings


def unknown(what: str, name: str, known: Collection[str]) -> UsageError:
    """Say that there is no such name, and which one was probably meant."""
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}."
    return UsageError(f"{what} {name!r} is unknown: {hint}")


def _check(path: Path, prefix: str, table: Mapping[str, Any], keys: Mapping[str, tuple[type, ...]]) -> None:
    for name, value in table.items():
        if name not in keys:
            raise unknown(f"{path}: the key", f"{prefix}{name}", [f"{prefix}{each}" for each in keys])
        # A bool is an int to Python, and not to whoever writes one.
        if type(value) not in keys[name]:
            words = " or ".join(_WORDS[kind] for kind in keys[name])
            raise UsageError(f"{path}: {prefix}{name} is {words}, not {value!r}.")
