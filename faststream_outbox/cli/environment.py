"""Values that are kept elsewhere: `env:NAME` stands for an environment variable."""

import os
from typing import Any, Final

from faststream_outbox.cli.errors import UsageError
from faststream_outbox.cli.passwords import remember

_PREFIX: Final = "env:"


def resolve(what: str, value: Any) -> Any:
    """Look `env:NAME` up, in tables and lists too; anything else is what it is. What was found is a secret."""
    match value:
        case dict():
            return {name: resolve(f"{what}.{name}", each) for name, each in value.items()}
        case list():
            return [resolve(what, each) for each in value]
        case str() if value.startswith(_PREFIX):
            name = value.removeprefix(_PREFIX)
            found = os.environ.get(name)
            if not found:
                raise UsageError(f"{what} is {value!r}, and the environment has no {name}.")
            if "://" not in found:  # of a URL only the password is one, and that is known by its place
                remember(found)
            return found
    return value
