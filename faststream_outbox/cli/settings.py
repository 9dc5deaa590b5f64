"""The settings of `faststream-outbox relay`: read from options, `OUTBOX_…` variables and a TOML file, in this order."""

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, EnvSettingsSource, InitSettingsSource, NoDecode, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from faststream_outbox.cli.addresses import check_dsn, show_address, split_address
from faststream_outbox.cli.errors import UsageError, suggest
from faststream_outbox.cli.secrets import Secret, SecretError, remember_options, remember_secret
from faststream_outbox.cli.strategies import make_retry_strategy, make_route, split_shards
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.relay.relay import RELAY_DEFAULTS
from faststream_outbox.retry import DEFAULT_RETRY
from faststream_outbox.storage.checks import check_name

_ENV_PREFIX: Final = "OUTBOX_"
# Values, and the function that returns how the user wrote the key at a location.
_Source = tuple[InitSettingsSource | EnvSettingsSource, Callable[..., str]]


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


def _resolve_options(options: Any) -> Any:
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


def _shards_as_text(shards: Any) -> Any:
    """Return a number or a list of numbers, as the file may have them, in the form of the option."""
    if isinstance(shards, list):
        return ",".join(map(str, shards))
    return str(shards) if type(shards) is int else shards


def _pass_to(check: Callable[[str], object]) -> AfterValidator:
    """Return a validator that calls `check`, which may raise `ValueError`, and keeps the value."""

    def validate(value: str) -> str:
        check(value)
        return value

    return AfterValidator(validate)


Text = Annotated[str, BeforeValidator(_resolve)]
SecretText = Annotated[Secret, BeforeValidator(_make_secret)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Table(BaseModel):
    """A table of the TOML file below the top."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Security(_Table):
    """`[to.security]`: how the program logs in to the broker that it sends to."""

    mechanism: Literal["plain", "scram-sha-256", "scram-sha-512"] = "plain"
    username: Text | None = None
    password: SecretText | None = Field(default=None, repr=False)
    # None: if a file of certificates is given.
    tls: bool | None = None
    ca_file: Text | None = None
    cert_file: Text | None = None
    key_file: Text | None = None


class Target(_Table):
    """`[to]`: the broker that rows are sent to, the arguments of its FastStream class, and how to log in."""

    url: Text = Field(repr=False)
    options: Annotated[dict[str, Any], BeforeValidator(_resolve_options)] = Field(default_factory=dict, repr=False)
    security: Security | None = None

    def read_password(self) -> str | None:
        """Return the present password of `[to.security]`; None if there is none."""
        secret = None if self.security is None else self.security.password
        return None if secret is None else secret.read()

    @property
    def password_changes(self) -> bool:
        """Whether the password may change while the program runs."""
        return self.security is not None and self.security.password is not None and self.security.password.changes


class RelaySettings(BaseSettings):
    """The settings of `faststream-outbox relay`; the defaults are those of `Relay` and `OutboxBroker`.

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

    dsn: Annotated[Text, _pass_to(check_dsn)] = Field(
        repr=False,
        examples=["postgresql://user@host:5432/database"],
        description="The database: postgresql://…, postgresql+asyncpg://… or postgresql+psycopg://…; or env:NAME, or "
        "file:PATH.",
    )
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
    shards_table: str = Field(default="outbox_shards", description="The table of shards, for hash-shards.")
    graceful_timeout: Seconds = Field(default=15.0, description="Seconds to wait for sent messages when stopped.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The lowest level that is logged: debug, info, warning or error."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="json, text, or auto: text in a terminal and JSON elsewhere."
    )
    progress: bool | None = Field(default=None, description="Show a live view; by default in a terminal.")
    # Often enough to draw a chart, seldom enough to read.
    progress_interval: Seconds = Field(default=10.0, description="Seconds between two lines of progress in the log.")
    health: Annotated[str, _pass_to(split_address)] | None = Field(
        default=None, description="Serve the health endpoint on host:port, or on a port of 127.0.0.1."
    )
    to: Annotated[Target, NoDecode, BeforeValidator(lambda to: {"url": to} if isinstance(to, str) else to)] = Field(
        examples=["kafka://host:9092"],
        description="The broker to send to: kafka://host:9092, kafka+confluent://…, amqp://…, amqps://…, nats://…, "
        "tls://…, redis://… or rediss://…; or env:NAME, or file:PATH.",
    )
    routes: dict[str, Annotated[str, _pass_to(make_route)]] = Field(
        min_length=1,
        examples=["queue=destination"],
        description="Where the rows of each queue go: a destination, or header:name to read it from a header.",
    )
    source: Annotated[str, AfterValidator(partial(check_name, "source"))] | None = Field(
        default=None, description="The name of this outbox in outbox_id; by default its table. Never change it."
    )
    cloudevents: bool = Field(default=False, description="Add the headers of CloudEvents 1.0.")
    ordering: Literal["head-lease", "advisory-locks", "hash-shards"] = Field(
        default="head-lease", description="How several nodes share keys: head-lease, advisory-locks or hash-shards."
    )
    shards: int = Field(default=16, description="The number of shards of hash-shards, a power of two.")
    own_shards: Annotated[str, BeforeValidator(_shards_as_text), _pass_to(split_shards)] | None = Field(
        default=None,
        description="The shards of this node alone: 0,1,8-11, or 2/5 for node 2 of 5, counted from 0. By default the "
        "nodes share all shards by the table of shards.",
    )
    on_dead: Literal["skip", "park"] = Field(
        default="skip", description="What to do when the broker refuses a message: skip it, or park its key."
    )
    # The checks of these are those of `Relay`, in its words.
    max_workers: int = Field(
        default=RELAY_DEFAULTS.max_workers,
        description="How many keys, or batches of rows without a key, are sent side by side.",
    )
    max_records: int | None = Field(
        default=RELAY_DEFAULTS.max_records,
        description="How many rows of one key, or without a key, are sent together.",
    )
    fetch_batch_size: int | None = Field(
        default=RELAY_DEFAULTS.fetch_batch_size, description="How many rows one statement claims at most."
    )
    min_fetch_interval: float = Field(
        default=RELAY_DEFAULTS.min_fetch_interval,
        description="Seconds until an idle queue is looked at again at first; the interval doubles from look to look.",
    )
    max_fetch_interval: float = Field(
        default=RELAY_DEFAULTS.max_fetch_interval,
        description="The longest such interval. Notifications usually wake the relay earlier.",
    )
    lease_ttl_seconds: float = Field(
        default=RELAY_DEFAULTS.lease_ttl_seconds,
        description="Seconds until other nodes claim the rows of a dead node.",
    )
    max_deliveries: int | None = Field(
        default=RELAY_DEFAULTS.max_deliveries,
        description="After how many deliveries a row is dead without being sent again; by default no limit.",
    )
    retry_strategy: Annotated[str, _pass_to(make_retry_strategy)] | None = Field(
        default=None,
        description="When a message is sent again that failed for another reason than an outage: none, constant, "
        "linear or exponential with arguments, such as constant?delay_seconds=5. By default exponential, with ten "
        "attempts.",
    )
    terminal_batch_size: int = Field(
        default=RELAY_DEFAULTS.terminal_batch_size, description="How many finished rows one statement settles at most."
    )
    terminal_flush_interval_ms: float = Field(
        default=RELAY_DEFAULTS.terminal_flush_interval_ms,
        description="Milliseconds that a finished row may wait to share its statement.",
    )
    retry_batch_size: int = Field(
        default=RELAY_DEFAULTS.retry_batch_size, description="How many failed rows one statement reschedules at most."
    )
    retry_flush_interval_ms: float = Field(
        default=RELAY_DEFAULTS.retry_flush_interval_ms,
        description="Milliseconds that a failed row may wait to share its statement.",
    )

    # By key: the option, the variable, or the file and the key that set it.
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, options: Mapping[str, Any], file: Path | None = None) -> Self:
        """Read the settings; raise `UsageError` that names the option, variable or key that is wrong.

        An option that is None was not given. The routes of all sources are merged, queue by queue.
        """
        build: Callable[..., Self] = cls
        origins: dict[str, str] = {}
        given = InitSettingsSource(cls, {key: value for key, value in options.items() if value is not None})
        sources: list[_Source] = [(given, _option), (EnvSettingsSource(cls), _variable)]
        if file is not None:
            sources.append((InitSettingsSource(cls, _read_toml(file)), lambda *at: f"{file}: {'.'.join(at)}"))
        for source in sources:
            _check_source(build, source, origins)
        try:
            settings = build(_build_sources=(tuple(values for values, _ in sources), {}))
        except ValidationError as error:
            key = str(error.errors()[0]["loc"][0])
            [example] = cls.model_fields[key].examples or [""]
            ways = f"give {_option(key)} {example}, or set {_variable(key)}, or write {key} into the file of --config"
            raise UsageError(f"{key} is not set: {ways}.") from error
        settings._origins.update(origins)  # noqa: SLF001 - of this class
        return settings

    @property
    def tuning(self) -> dict[str, Any]:
        """The options of `Relay` that have the same name and the same value here."""
        return {key: getattr(self, key) for key in TUNING}

    @property
    def effective(self) -> dict[str, Any]:
        """How this node shares, claims and sends rows, for people to read; it holds no secret."""
        shards: dict[str, Any] = {}
        if self.ordering == "hash-shards":
            own = None if self.own_shards is None else split_shards(self.own_shards, self.shards)
            shards = {"shards": self.shards, "own_shards": own}
        retry = self.retry_strategy or repr(DEFAULT_RETRY)
        return {"ordering": self.ordering, **shards, **self.tuning, "retry_strategy": retry}

    @contextmanager
    def blame(self, *keys: str) -> Iterator[None]:
        """Turn an error about a value into a `UsageError` that names where the setting came from.

        Of several keys it is the one that the error mentions first, or the first of all.
        """
        try:
            yield
        except (TypeError, ValueError, SecretError) as error:
            key = next((word for word in re.findall(r"\w+", str(error)) if word in keys), keys[0])
            raise UsageError(f"{self._origins.get(key, _option(key))}: {error}") from error


# The settings that a relay is made with as they are.
TUNING: Final = tuple(
    field.name
    for field in fields(SubscriberOptions)
    if field.name in RelaySettings.model_fields and field.name not in ("ordering", "retry_strategy")
)


def keys_of(model: type[BaseModel]) -> list[str]:
    """Return the names of the fields in options, variables and the file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _option(key: str, *_: str) -> str:
    return "--route" if key == "routes" else f"--{key.replace('_', '-')}"


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


def _check_source(build: Callable[..., BaseSettings], source: _Source, origins: dict[str, str]) -> None:
    """Validate one source alone, so that an error can name its source; add its keys to `origins`."""
    values, name = source
    try:
        build(_build_sources=((values,), {}))
    except ValidationError as error:
        for each in error.errors():
            if not _is_ignored(each, origins):
                raise UsageError(_describe(each, name)) from error
    except SettingsError as error:
        # The only variable that holds JSON.
        raise UsageError(f'{_variable("routes")}: this is not JSON; write {{"queue": "destination"}}.') from error
    for key in values():
        if key not in origins:
            origins[key] = name(key)
        elif key == "routes":
            origins[key] += f" or {name(key)}"


def _is_ignored(error: ErrorDetails, set_before: Mapping[str, str]) -> bool:
    """Return whether another source may complete this one, or has replaced the incomplete value."""
    kind, at = error["type"], error["loc"]
    if kind in ("missing", "too_short") and len(at) == 1:
        return True
    return kind in ("missing", "unset_variable") and at[0] in set_before


def _describe(error: ErrorDetails, name: Callable[..., str]) -> str:
    at = [str(each) for each in error["loc"]]
    match error["type"]:
        case "extra_forbidden":
            tables: dict[str, type[BaseModel]] = {"to": Target, "to.security": Security}
            table = tables.get(".".join(at[:-1]), RelaySettings)
            problem = f"this key is unknown; {suggest(at[-1], keys_of(table))}"
        case "missing":
            problem = 'this key is missing; write url = "kafka://host:9092".'
        case "value_error" | "unset_variable":
            problem = error["msg"].removeprefix("Value error, ")
            problem = problem if problem.endswith((".", "?")) else f"{problem}."
        case _:
            # A DSN and the settings of a broker may hold a password.
            given = "" if at[0] in ("dsn", "dsn_password", "to") else f", not {error['input']!r}"
            problem = f"{error['msg'].replace('Input should be', 'this must be')}{given}."
    return f"{name(*at)}: {problem}"
