"""The settings of `faststream-outbox relay`: read from options, `OUTBOX_…` variables and a TOML file, in this order."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode

from faststream_outbox.cli.addresses import split_address
from faststream_outbox.cli.relay.strategies import make_retry_strategy, make_route, split_shards
from faststream_outbox.cli.setting_types import Seconds, SecretText, Text, pass_to, resolve_options
from faststream_outbox.cli.settings import DSN_DESCRIPTION, DSN_EXAMPLE, Dsn, OutboxSettings
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.relay.relay import RELAY_DEFAULTS
from faststream_outbox.retry import DEFAULT_RETRY
from faststream_outbox.storage.checks import check_name


def _shards_as_text(shards: Any) -> Any:
    """Return a number or a list of numbers, as the file may have them, in the form of the option."""
    if isinstance(shards, list):
        return ",".join(map(str, shards))
    return str(shards) if type(shards) is int else shards


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

    url: Text = Field(repr=False, examples=["kafka://host:9092"])
    options: Annotated[dict[str, Any], BeforeValidator(resolve_options)] = Field(default_factory=dict, repr=False)
    security: Security | None = None

    def read_password(self) -> str | None:
        """Return the present password of `[to.security]`; None if there is none."""
        secret = None if self.security is None else self.security.password
        return None if secret is None else secret.read()

    @property
    def password_changes(self) -> bool:
        """Whether the password may change while the program runs."""
        return self.security is not None and self.security.password is not None and self.security.password.changes


class RelaySettings(OutboxSettings):
    """The settings of `faststream-outbox relay`; the defaults are those of `Relay` and `OutboxBroker`.

    The description of a field is its text in `--help` and in the documentation.
    """

    option_names: ClassVar[Mapping[str, str]] = {"routes": "--route"}
    json_examples: ClassVar[Mapping[str, str]] = {"routes": '{"queue": "destination"}'}

    # Here it is required.
    dsn: Dsn = Field(repr=False, examples=[DSN_EXAMPLE], description=DSN_DESCRIPTION)
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
    health: Annotated[str, pass_to(split_address)] | None = Field(
        default=None, description="Serve the health endpoint on host:port, or on a port of 127.0.0.1."
    )
    to: Annotated[Target, NoDecode, BeforeValidator(lambda to: {"url": to} if isinstance(to, str) else to)] = Field(
        repr=False,
        examples=["kafka://host:9092"],
        description="The broker to send to: kafka://host:9092, kafka+confluent://…, amqp://…, amqps://…, nats://…, "
        "tls://…, redis://… or rediss://…; or env:NAME, or file:PATH.",
    )
    routes: dict[str, Annotated[str, pass_to(make_route)]] = Field(
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
    own_shards: Annotated[str, BeforeValidator(_shards_as_text), pass_to(split_shards)] | None = Field(
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
        description="Seconds until other nodes claim the rows of a node that stalls; of one that was killed, sooner.",
    )
    max_deliveries: int | None = Field(
        default=RELAY_DEFAULTS.max_deliveries,
        description="After how many deliveries a row is dead without being sent again; by default no limit.",
    )
    retry_strategy: Annotated[str, pass_to(make_retry_strategy)] | None = Field(
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

    @classmethod
    def keys_of_other_commands(cls) -> Collection[str]:
        """Return the keys of the commands of operators, which may have the same file."""
        return ("app",)

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


# The settings that a relay is made with as they are.
TUNING: Final = tuple(
    field.name
    for field in fields(SubscriberOptions)
    if field.name in RelaySettings.model_fields and field.name not in ("ordering", "retry_strategy")
)
