"""The broker that rows go to, by its URL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from logging import Logger
from typing import Any, Final
from urllib.parse import parse_qsl

from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.file import unknown
from faststream_outbox.cli.security import client_settings, make_security
from faststream_outbox.cli.settings import To


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of FastStream's packages; `read` tells what its broker is made with."""

    package: str
    broker: str
    extra: str
    read: Callable[[To], dict[str, Any]]


def make_broker(to: To, logger: Logger) -> Any:
    """Make the broker of a URL; it is not connected yet."""
    scheme, separator, _ = to.url.partition("://")
    if not separator or scheme not in _KINDS:
        raise UsageError(f"There is no broker at {scheme}://: {', '.join(f'{each}://' for each in _KINDS)}.")
    kind = _KINDS[scheme]
    try:
        broker_class = getattr(import_module(kind.package), kind.broker)
    except ImportError as error:
        raise ProgramError(
            f"Sending to {scheme}:// needs what is not installed: pip install 'faststream-outbox[{kind.extra}]'."
        ) from error
    options = kind.read(to)
    _check_options(broker_class, options)
    try:
        return broker_class(**options, logger=logger)
    except Exception as error:  # whatever a client says of its options
        raise UsageError(f"[to] is refused by {kind.broker}: {error}") from error


def _read_kafka(to: To) -> dict[str, Any]:
    servers, options = _read_servers(to)
    # Without idempotence the order of a key could be lost, and a relay refuses it.
    return {"enable_idempotence": True, **options, "bootstrap_servers": servers, **_security(to, sasl=True)}


def _read_confluent(to: To) -> dict[str, Any]:
    servers, options = _read_servers(to)
    config = {"enable.idempotence": True, **client_settings(to.security), **options.pop("config", {})}
    return {**options, "config": config, "bootstrap_servers": servers, **_security(to, sasl=True, context=False)}


def _read_servers(to: To) -> tuple[list[str], dict[str, Any]]:
    """Read `scheme://a:9092,b:9092?option=value`."""
    servers, _, query = to.url.partition("://")[2].partition("?")
    if "@" in servers:
        raise UsageError("Kafka's URL has no user and no password: write [to.security] into the file of --config.")
    found = [server for server in servers.rstrip("/").split(",") if server]
    if not found:
        raise UsageError(f"{to.url!r} names no server: kafka://host:9092.")
    return found, {**{name: _value(text) for name, text in parse_qsl(query)}, **to.options}


def _read_nats(to: To) -> dict[str, Any]:
    scheme, _, servers = to.url.partition("://")
    return {**to.options, "servers": [f"{scheme}://{server}" for server in servers.split(",")], **_security(to)}


def _read_url(to: To) -> dict[str, Any]:
    return {**to.options, "url": to.url, **_security(to)}


def _security(to: To, **options: bool) -> dict[str, Any]:
    security = make_security(to.security, **options)
    return {"security": security} if security else {}


def _value(text: str) -> int | float | bool | str:
    """Read what a query gives as text, and a client takes as a number or a boolean."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_options(broker_class: Any, options: Mapping[str, Any]) -> None:
    parameters = signature(broker_class).parameters
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            raise unknown(f"The option of {broker_class.__name__}", name, list(parameters))


_KINDS: Final[Mapping[str, _Kind]] = {
    "kafka": _Kind("faststream.kafka", "KafkaBroker", "kafka", _read_kafka),
    "kafka+confluent": _Kind("faststream.confluent", "KafkaBroker", "confluent", _read_confluent),
    "amqp": _Kind("faststream.rabbit", "RabbitBroker", "rabbit", _read_url),
    "amqps": _Kind("faststream.rabbit", "RabbitBroker", "rabbit", _read_url),
    "nats": _Kind("faststream.nats", "NatsBroker", "nats", _read_nats),
    "redis": _Kind("faststream.redis", "RedisBroker", "redis", _read_url),
    "rediss": _Kind("faststream.redis", "RedisBroker", "redis", _read_url),
}
