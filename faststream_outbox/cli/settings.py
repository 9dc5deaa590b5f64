"""What every command reads its settings by: options, `OUTBOX_…` variables and a TOML file, in this order."""

import inspect
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self, get_args, get_origin

from pydantic import BaseModel, Field, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, InitSettingsSource, NoDecode, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from faststream_outbox.cli.addresses import check_dsn
from faststream_outbox.cli.errors import UsageError, suggest
from faststream_outbox.cli.secrets import SecretError
from faststream_outbox.cli.setting_types import SecretText, Text, pass_to

_ENV_PREFIX: Final = "OUTBOX_"
_JSON_FIELD: Final = re.compile(r'"(\w+)"')
# Values, and the function that returns how the user wrote the key at a location.
_Source = tuple[InitSettingsSource | EnvSettingsSource, Callable[..., str]]

Dsn = Annotated[Text, pass_to(check_dsn)]
DSN_EXAMPLE: Final = "postgresql://user@host:5432/database"
DSN_DESCRIPTION: Final = (
    "The database: postgresql://…, postgresql+asyncpg://… or postgresql+psycopg://…; or env:NAME, or file:PATH."
)


class OutboxSettings(BaseSettings):
    """The database and the tables that a command works on.

    The description of a field is its text in `--help` and in the documentation.
    """

    model_config = SettingsConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        env_prefix=_ENV_PREFIX,
        env_prefix_target="all",
        env_ignore_empty=True,
    )
    # Options whose names are not those of their keys.
    option_names: ClassVar[Mapping[str, str]] = {}
    # What to write into the variables that hold JSON.
    json_examples: ClassVar[Mapping[str, str]] = {}

    dsn: Dsn | None = Field(default=None, repr=False, examples=[DSN_EXAMPLE], description=DSN_DESCRIPTION)
    dsn_password: Annotated[SecretText | None, NoDecode] = Field(
        default=None,
        repr=False,
        description="The password of the database, if it is not in the DSN: env:NAME; or file:PATH or command:PROGRAM, "
        "which are read again for each connection.",
    )
    table: str = Field(default="outbox", description="The table of the outbox.")
    schema_name: str | None = Field(default=None, alias="schema", description="The schema of the tables.")
    dlq_table: str | None = Field(
        default=None, description="The dead-letter table. Without one, dead messages are deleted."
    )
    control_table: str | None = Field(
        default=None, description="The table of paused queues. Without one, queues cannot be paused."
    )
    audit_table: str | None = Field(default=None, description="The table of what operators did.")
    nodes_table: str | None = Field(default=None, description="The table of running processes, for people to read.")

    # By key: the option, the variable, or the file and the key that set it.
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def keys_of_other_commands(cls) -> Collection[str]:
        """Return the keys of a file that this command ignores, because other commands read the same file."""
        return ()

    @classmethod
    def load(cls, options: Mapping[str, Any], file: Path | None = None) -> Self:
        """Read the settings; raise `UsageError` that names the option, variable or key that is wrong.

        An option that is None was not given. Mappings of all sources are merged, key by key.
        """
        build: Callable[..., Self] = cls
        origins: dict[str, str] = {}
        given = InitSettingsSource(cls, {key: value for key, value in options.items() if value is not None})
        sources: list[_Source] = [(given, cls.option_of), (EnvSettingsSource(cls), _variable)]
        if file is not None:
            known = keys_of(cls)
            found = {
                key: value
                for key, value in _read_toml(file).items()
                if key in known or key not in cls.keys_of_other_commands()
            }
            sources.append((InitSettingsSource(cls, found), lambda *at: f"{file}: {'.'.join(at)}"))
        for source in sources:
            cls._check_source(build, source, origins)
        try:
            settings = build(_build_sources=(tuple(values for values, _ in sources), {}))
        except ValidationError as error:
            raise cls.missing(str(error.errors()[0]["loc"][0])) from error
        settings._origins.update(origins)  # noqa: SLF001 - of this class
        return settings

    @classmethod
    def missing(cls, key: str, *other_ways: str) -> UsageError:
        """Return the error about a setting that was not given, with all ways to give it."""
        [example] = cls.model_fields[key].examples or [""]
        ways = [
            f"give {cls.option_of(key)} {example}",
            f"set {_variable(key)}",
            f"write {key} into the file of --config",
        ]
        return UsageError(f"{key} is not set: {', or '.join([*ways, *other_ways])}.")

    @classmethod
    def option_of(cls, key: str, *_: str) -> str:
        """Return the option that sets a key."""
        return cls.option_names.get(key, f"--{key.replace('_', '-')}")

    @contextmanager
    def blame(self, *keys: str) -> Iterator[None]:
        """Turn an error about a value into a `UsageError` that names where the setting came from.

        Of several keys it is the one that the error mentions first, or the first of all.
        """
        try:
            yield
        except (TypeError, ValueError, SecretError) as error:
            key = next((word for word in re.findall(r"\w+", str(error)) if word in keys), keys[0])
            raise UsageError(f"{self._origins.get(key, self.option_of(key))}: {error}") from error

    def origin(self, key: str) -> str | None:
        """Return the option, the variable or the key of the file that set a key; None if it was not given."""
        return self._origins.get(key)

    @classmethod
    def _check_source(cls, build: Callable[..., BaseSettings], source: _Source, origins: dict[str, str]) -> None:
        """Validate one source alone, so that an error can name its source; add its keys to `origins`."""
        values, name = source
        try:
            build(_build_sources=((values,), {}))
        except ValidationError as error:
            for each in error.errors():
                if not _is_ignored(each, origins):
                    raise UsageError(cls._describe(each, name)) from error
        except SettingsError as error:
            found = _JSON_FIELD.search(str(error))
            key = found[1] if found else ""
            raise UsageError(f"{_variable(key)}: this is not JSON; write {cls.json_examples.get(key)}.") from error
        for key in values():
            if key not in origins:
                origins[key] = name(key)
            elif get_origin(cls._field(key).annotation) is dict:
                origins[key] += f" or {name(key)}"

    @classmethod
    def _field(cls, key: str) -> FieldInfo:
        return dict(zip(keys_of(cls), cls.model_fields.values(), strict=True))[key]

    @classmethod
    def _describe(cls, error: ErrorDetails, name: Callable[..., str]) -> str:
        at = [str(each) for each in error["loc"]]
        match error["type"]:
            case "extra_forbidden":
                problem = f"this key is unknown; {suggest(at[-1], keys_of(_model_at(cls, at[:-1])))}"
            case "missing":
                [example] = _model_at(cls, at[:-1]).model_fields[at[-1]].examples or [""]
                problem = f'this key is missing; write {at[-1]} = "{example}".'
            case "value_error" | "unset_variable":
                problem = error["msg"].removeprefix("Value error, ")
                problem = problem if problem.endswith((".", "?")) else f"{problem}."
            case _:
                # What is not in `repr` may hold a password.
                given = f", not {error['input']!r}" if cls._field(at[0]).repr else ""
                problem = f"{error['msg'].replace('Input should be', 'this must be')}{given}."
        return f"{name(*at)}: {problem}"


def keys_of(model: type[BaseModel]) -> list[str]:
    """Return the names of the fields in options, variables and the file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[BaseModel], path: Collection[str]) -> type[BaseModel]:
    """Return the model of a table of the file."""
    for name in path:
        annotation = model.model_fields[name].annotation
        kinds = (annotation, *get_args(annotation))
        model = next(each for each in kinds if inspect.isclass(each) and issubclass(each, BaseModel))
    return model


def _variable(key: str, *_: str) -> str:
    return f"{_ENV_PREFIX}{key.upper()}"


def _read_toml(file: Path) -> dict[str, Any]:
    # The TOML source of pydantic-settings ignores a file that is missing, and a pipe; both matter here.
    try:
        found = tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"{file}: this file cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: this file is not TOML: {error}.") from error
    # A key may be written as its option is: on-dead.
    written: dict[str, str] = {}
    for key in found:
        if (first := written.setdefault(key.replace("-", "_"), key)) != key:
            raise UsageError(f"{file}: {first} and {key} are the same setting: write one of them.")
    return {name: found[key] for name, key in written.items()}


def _is_ignored(error: ErrorDetails, set_before: Mapping[str, str]) -> bool:
    """Return whether another source may complete this one, or has replaced the incomplete value."""
    kind, at = error["type"], error["loc"]
    if kind in ("missing", "too_short") and len(at) == 1:
        return True
    return kind in ("missing", "unset_variable") and at[0] in set_before
