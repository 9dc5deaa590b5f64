"""The types of settings: texts that may name a variable or a file, passwords, seconds."""

import os
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from faststream_outbox.cli.addresses import show_address
from faststream_outbox.cli.secrets import Secret, SecretError, remember_options, remember_secret


def _resolve(value: Any) -> Any:
    """Return what `env:NAME` or `file:PATH` names, also inside tables and lists; return other values unchanged."""
    match value:
        case dict():
            return {name: _resolve(each) for name, each in value.items()}
        case list():
            return [_resolve(each) for each in value]
        case str() if value.startswith("env:"):
            name = value.removeprefix("env:")
            found = os.environ.get(name)
            if not found:
                raise PydanticCustomError("unset_variable", "the variable {name} is not set", {"name": name})
            return _remember(found)
        case str() if value.startswith("file:"):
            try:
                return _remember(Secret(value).read())
            except SecretError as error:
                raise ValueError(str(error)) from None
    return value


def _remember(found: str) -> str:
    if "://" in found:
        show_address(found)  # records the secrets of an address, or the whole of another text
    else:
        remember_secret(found)
    return found


def resolve_options(options: Any) -> Any:
    """Return options with what their texts name, and record those that are secrets."""
    resolved = _resolve(options)
    remember_options(resolved)
    return resolved


def _make_secret(value: Any) -> Secret:
    """Return the source of a password; a variable must be set, and other sources are read when they are needed."""
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise ValueError("this must be a text")  # noqa: TRY004 - pydantic shows ValueErrors
    return Secret(value if value.startswith(("file:", "command:")) else remember_secret(_resolve(value)))


def pass_to(check: Callable[[str], object]) -> AfterValidator:
    """Return a validator that calls `check`, which may raise `ValueError`, and keeps the value."""

    def validate(value: str) -> str:
        check(value)
        return value

    return AfterValidator(validate)


Text = Annotated[str, BeforeValidator(_resolve)]
SecretText = Annotated[Secret, BeforeValidator(_make_secret)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
