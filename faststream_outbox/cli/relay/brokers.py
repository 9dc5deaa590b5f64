"""The FastStream broker that rows are sent to: made from its address, `[to.options]` and `[to.security]`."""

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from logging import Logger
from typing import Any, Final

from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

from faststream_outbox._installation import needs_extra
from faststream_outbox.cli.addresses import Address, Server
from faststream_outbox.cli.errors import ProgramError, suggest
from faststream_outbox.cli.relay.settings import Security, Target
from faststream_outbox.cli.relay.strategies import parse_query

_MECHANISMS: Final = {"plain": SASLPlaintext, "scram-sha-256": SASLScram256, "scram-sha-512": SASLScram512}
_SECURE_SCHEMES: Final = ("amqps", "rediss", "tls")


def make_broker(to: Target, logger: Logger, password: str | None = None) -> Any:
    """Return the broker of an address, not connected yet; raise `ValueError` if a setting is wrong.

    Its password is the one given here, or that of `[to.security]` at this moment, or that in the address.
    """
    scheme, separator, _ = to.url.partition("://")
    if not separator or scheme not in _KINDS:
        known = ", ".join(f"{each}://" for each in _KINDS)
        # Text without a scheme is not repeated: it may be a password.
        raise ValueError(f"{f'{scheme}:// is not known' if separator else 'this is not a URL'}; write one of {known}.")
    package, name, make_arguments = _KINDS[scheme]
    try:
        broker_class = getattr(import_module(f"faststream.{package}"), name)
    except ImportError as error:
        raise ProgramError(f"{needs_extra(f'Sending to {scheme}://', package)}.") from error
    arguments = make_arguments(_Broker(to, Address.parse(to.url), to.read_password() if password is None else password))
    _check_arguments(broker_class, arguments)
    try:
        return broker_class(**arguments, logger=logger)
    except Exception as error:  # each client raises its own errors about its options
        raise ValueError(f"{name} refused its options: {error}") from error


class PasswordWatch:
    """Makes a broker again when the file or the command of its password has another one."""

    def __init__(self, to: Target, logger: Logger) -> None:
        self._to, self._logger = to, logger
        self._password = to.read_password()

    def make(self) -> Any:
        """Return a broker with the present password."""
        return make_broker(self._to, self._logger, self._password)

    async def find(self) -> Any | None:
        """Read the password again; return a broker with it if it has changed."""
        password = await asyncio.to_thread(self._to.read_password)
        if password == self._password:
            return None
        self._password = password
        return self.make()


@dataclass(frozen=True)
class _Broker:
    """What the arguments of a broker are made of."""

    to: Target
    address: Address
    # That of [to.security], which wins over the one in the address.
    password: str | None

    @property
    def security(self) -> Security:
        return self.to.security or Security()

    @property
    def user(self) -> str | None:
        """The user of [to.security], or that of the address."""
        address = self.address
        return self.security.username or (address.login[0] if self.password is None else address.user)

    def servers(self) -> tuple[list[str], dict[str, Any]]:
        """Return the servers and the options of `scheme://a:9092,b:9092?option=value`."""
        if self.address.servers[0].login is not None:
            raise ValueError("the URL of Kafka has no user and no password; write them into [to.security] of a file.")
        found = [server.place for server in self.address.servers if server.place]
        if not found:
            raise ValueError("the URL names no server; write kafka://host:9092.")
        return found, {**parse_query(self.address.query), **self.to.options}

    def login(self, *, sasl: bool = False, context: bool = True, beside: bool = False) -> dict[str, Any]:
        """Return the argument `security`, if there is one.

        `context`: with an SSL context; `beside`: also for the user and the password that are in the address.
        """
        security = self.security
        if not security.model_fields_set and not beside:
            return {}
        secure = bool(security.ca_file or security.cert_file) or self.address.scheme in _SECURE_SCHEMES
        tls = secure if security.tls is None else security.tls
        options: dict[str, Any] = {"use_ssl": tls, "ssl_context": _ssl_context(security) if tls and context else None}
        # A password belongs to the user of the address, if [to.security] names no other.
        user, password = self.user, self.address.login[1] if self.password is None else self.password
        if user is None or not (beside or security.username or self.password):
            return {"security": BaseSecurity(**options)}
        if security.mechanism != "plain" and not sasl:
            raise ValueError(f"the mechanism {security.mechanism!r} of [to.security] is for Kafka only; leave it out.")
        mechanism = _MECHANISMS[security.mechanism]
        return {"security": mechanism(username=user, password=password or "", **options)}


def _kafka(broker: _Broker) -> dict[str, Any]:
    servers, options = broker.servers()
    # Without idempotence a retry may reorder the messages of a key, and `Relay` refuses such a broker.
    return {"enable_idempotence": True, **options, "bootstrap_servers": servers, **broker.login(sasl=True)}


def _confluent(broker: _Broker) -> dict[str, Any]:
    servers, options = broker.servers()
    security = broker.security
    # librdkafka reads the files of certificates itself.
    files = {
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.cert_file,
        "ssl.key.location": security.key_file,
    }
    config = {"enable.idempotence": True, **{name: file for name, file in files.items() if file is not None}}
    config |= options.pop("config", {})
    return {**options, "config": config, "bootstrap_servers": servers, **broker.login(sasl=True, context=False)}


def _nats(broker: _Broker) -> dict[str, Any]:
    servers, password = broker.address.servers, broker.password
    # The client decodes no login in an address, so a user and a password are given beside it where all servers share
    # them. A token stays in the address.
    shared = broker.user is not None and len({server.login for server in servers}) == 1
    beside = broker.security.username is not None or shared
    if password is not None and not beside:
        if re.search(r"[/?#@:\s]", password):
            raise ValueError("the token has a character that an address cannot hold; name a user in [to.security].")
        servers = tuple(Server(password, server.place) for server in servers)
    found = [f"{broker.address.scheme}://{server.place if beside else server.written}" for server in servers]
    return {**broker.to.options, "servers": found, **broker.login(beside=beside)}


def _url(broker: _Broker) -> dict[str, Any]:
    return {**broker.to.options, "url": broker.to.url, **broker.login()}


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
_KINDS: Final[Mapping[str, tuple[str, str, Callable[[_Broker], dict[str, Any]]]]] = {
    "kafka": ("kafka", "KafkaBroker", _kafka),
    "kafka+confluent": ("confluent", "KafkaBroker", _confluent),
    "amqp": ("rabbit", "RabbitBroker", _url),
    "amqps": ("rabbit", "RabbitBroker", _url),
    "nats": ("nats", "NatsBroker", _nats),
    "tls": ("nats", "NatsBroker", _nats),
    "redis": ("redis", "RedisBroker", _url),
    "rediss": ("redis", "RedisBroker", _url),
}
