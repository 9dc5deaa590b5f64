"""What a relay is told: by the command line, by a file, and by defaults, in this order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from faststream_outbox.cli.environment import resolve
from faststream_outbox.cli.errors import UsageError
from faststream_outbox.cli.file import read_file

OrderingName = Literal["head-lease", "advisory-locks", "hash-shards"]

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "ordering": ("head-lease", "advisory-locks", "hash-shards"),
    "on_dead": ("skip", "park"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("auto", "json", "text"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class To:
    """The broker that rows go to: where it is, what its client is told, and how one gets in."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    security: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """A relay, before anything of it is made. The defaults are those of `Relay` and `OutboxBroker`."""

    dsn: str = field(repr=False)
    to: To = field(repr=False)
    routes: Mapping[str, str]
    source: str | None = None
    table: str = "outbox"
    schema: str | None = None
    dlq_table: str | None = None
    shards_table: str = "outbox_shards"
    ordering: OrderingName = "head-lease"
    shards: int = 16
    on_dead: Literal["skip", "park"] = "skip"
    cloudevents: bool = False
    lease_ttl: float = 60.0
    graceful_timeout: float = 15.0
    log_level: str = "info"
    log_format: Literal["auto", "json", "text"] = "auto"
    # None: where there is a terminal.
    progress: bool | None = None
    # Often enough to draw a chart of, seldom enough to be read.
    progress_interval: float = 10.0
    health: str | None = None


def make_settings(given: Mapping[str, Any], file: Path | None) -> RelaySettings:
    """Put together what was given and what is in the file; the routes of both, queue by queue."""
    written = read_file(file) if file else {}
    chosen = written | {name: value for name, value in given.items() if value is not None}
    chosen["routes"] = {**written.get("routes", {}), **(given.get("routes") or {})}
    _check_complete(chosen)
    for name, choices in CHOICES.items():
        if name in chosen and chosen[name] not in choices:
            raise UsageError(f"{_option(name)} is {_either(choices)}, not {chosen[name]!r}.")
    if chosen.get("health") is not None:
        split_address(chosen["health"])
    chosen["dsn"] = resolve("dsn", chosen["dsn"])
    chosen["to"] = _read_to(chosen["to"])
    return RelaySettings(**chosen)


def split_address(address: str) -> tuple[str, int]:
    """Read `host:port`, or a port, which has no host."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise UsageError(f"--health {address!r} is no address: host:port, or a port.")
    return host.strip("[]"), int(port)


def _read_to(to: str | Mapping[str, Any]) -> To:
    table = resolve("to", {"url": to} if isinstance(to, str) else to)
    if "url" not in table:
        raise UsageError('[to] has no url: url = "kafka://host:9092".')
    return To(**table)


def _check_complete(chosen: Mapping[str, Any]) -> None:
    if not chosen.get("dsn"):
        raise UsageError(
            "There is no database: set OUTBOX_DSN=postgresql://…, or give --dsn, or write dsn into the --config file."
        )
    if not chosen.get("to"):
        raise UsageError("There is no broker to send to: --to kafka://host:9092, or to = … in the file of --config.")
    if not chosen["routes"]:
        raise UsageError("There is no route: --route queue=destination, or [routes] in the file of --config.")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _either(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
