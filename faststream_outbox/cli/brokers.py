"""The FastStream broker that rows are sent to: made from its URL, `[to.options]` and `[to.security]`."""

import ssl
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import Parameter, signature
from logging import Logger
from typing import Any, Final

from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

from faststream_outbox.cli.errors import ProgramError, suggest
from faststream_outbox.cli.settings import Security, Target
from faststream_outbox.cli.strategies import parse_query

_MECHANISMS: Final = {"plain": SASLPlaintext, "scram-sha-256": SASLScram256, "scram-sha-512": SASLScram512}


def make_broker(to: Target, logger: Logger) -> Any:
    """Return the broker of a URL, not connected yet; raise `ValueError` if a setting is wrong."""
    scheme, separator, _ = to.url.partition("://")
    if not separator or scheme not in _KINDS:
        known = ", ".join(f"{each}://" for each in _KINDS)
        # Text without a scheme is not repeated: it may be a password.
        raise ValueError(f"{f'{scheme}:// is not known' if separator else 'this is not a URL'}; write one of {known}.")
    package, name, make_arguments = _KINDS[scheme]
    try:
        broker_class = getattr(import_module(f"faststream.{package}"), name)
    except ImportError as error:
        install = f"pip install 'faststream-outbox[{package}]'"
        raise ProgramError(f"Sending to {scheme}:// needs a package that is not installed: {install}.") from error
    arguments = make_arguments(to)
    _check_arguments(broker_class, arguments)
    try:
        return broker_class(**arguments, logger=logger)
    except Exception as error:  # each client raises its own errors about its options
        raise ValueError(f"{name} refused its options: {error}") from error


def _kafka(to: Target) -> dict[str, Any]:
    servers, options = _servers(to)
    # Without idempotence a retry may reorder the messages of a key, and `Relay` refuses such a broker.
    return {"enable_idempotence": True, **options, "bootstrap_servers": servers, **_security(to, sasl=True)}


def _confluent(to: Target) -> dict[str, Any]:
    servers, options = _servers(to)
    security = to.security or Security()
    # librdkafka reads the files of certificates itself.
    files = {
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.cert_file,
        "ssl.key.location": security.key_file,
    }
    config = {"enable.idempotence": True, **{name: file for name, file in files.items() if file is not None}}
    config |= options.pop("config", {})
    return {**options, "config": config, "bootstrap_servers": servers, **_security(to, sasl=True, context=False)}


def _servers(to: Target) -> tuple[list[str], dict[str, Any]]:
    """Split `scheme://a:9092,b:9092?option=value` into servers and options."""
    servers, _, query = to.url.partition("://")[2].partition("?")
    if "@" in servers:
        raise ValueError("the URL of Kafka has no user and no password; write them into [to.security] of a file.")
    found = [server for server in servers.rstrip("/").split(",") if server]
    if not found:
        raise ValueError("the URL names no server; write kafka://host:9092.")
    return found, {**parse_query(query), **to.options}


def _nats(to: Target) -> dict[str, Any]:
    scheme, _, servers = to.url.partition("://")
    return {**to.options, "servers": [f"{scheme}://{server}" for server in servers.split(",")], **_security(to)}


def _url(to: Target) -> dict[str, Any]:
    return {**to.options, "url": to.url, **_security(to)}


def _security(to: Target, *, sasl: bool = False, context: bool = True) -> dict[str, Any]:
    """Return the argument `security` of a broker, if there is one; `context`: with an SSL context."""
    security = to.security
    if security is None or not security.model_fields_set:
        return {}
    tls = bool(security.ca_file or security.cert_file) if security.tls is None else security.tls
    options: dict[str, Any] = {"use_ssl": tls, "ssl_context": _ssl_context(security) if tls and context else None}
    if security.username is None:
        return {"security": BaseSecurity(**options)}
    if security.mechanism != "plain" and not sasl:
        raise ValueError(f"the mechanism {security.mechanism!r} of [to.security] is for Kafka only; leave it out.")
    mechanism = _MECHANISMS[security.mechanism]
    return {"security": mechanism(username=security.username, password=security.password, **options)}


def _ssl_context(security: Security) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        if security.cert_file is not None:
            context.load_cert_chain(security.cert_file, security.key_file)
    except OSError as error:
        raise ValueError(f"the certificates of [to.security] cannot be loaded: {error}") from error
    return context


def _check_arguments(broker_class: Any, arguments: Mapping[str, Any]) -> None:
    parameters = signature(broker_class).parameters
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    for name in arguments:
        if name not in parameters:
            raise ValueError(f"{broker_class.__name__} has no option {name!r}; {suggest(name, list(parameters))}")


# By the scheme of the URL: FastStream's package, also the name of our extra; its broker; the maker of its arguments.
_KINDS: Final[Mapping[str, tuple[str, str, Callable[[Target], dict[str, Any]]]]] = {
    "kafka": ("kafka", "KafkaBroker", _kafka),
    "kafka+confluent": ("confluent", "KafkaBroker", _confluent),
    "amqp": ("rabbit", "RabbitBroker", _url),
    "amqps": ("rabbit", "RabbitBroker", _url),
    "nats": ("nats", "NatsBroker", _nats),
    "redis": ("redis", "RedisBroker", _url),
    "rediss": ("redis", "RedisBroker", _url),
}
