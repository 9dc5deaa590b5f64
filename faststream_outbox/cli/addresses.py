"""Addresses of brokers, of the database and of the health endpoint; one that cannot be read is never shown."""

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import parse_qsl, unquote

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from faststream_outbox.cli.secrets import is_secret_name, remember_secret

_HIDDEN: Final = "***"
# An @ behind the servers is refused: it ends a password with a / or a ? that is not encoded.
_ADDRESS: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<servers>[^/?#\s]*)(?P<path>/[^?#@\s]*)?(?P<rest>.*)")
_QUERY: Final = re.compile(r"(\?([^\s?#@=&]+=[^\s?#@&]*(&|$))*)?")
_SERVER: Final = re.compile(r"((?P<login>[^\[\]]*)@)?(?P<host>[\w.-]*|\[[\w:.%]+\])(:(?P<port>\d{1,5}))?")
# Several servers are separated by commas.
_WITH_SEVERAL_SERVERS: Final = ("kafka", "kafka+confluent", "nats", "tls")
# A login without a colon is a token here, and a user elsewhere.
_WITH_TOKENS: Final = ("nats", "tls")
_LAST_PORT: Final = 65535
_UNREADABLE: Final = (
    "this address cannot be read, and it is not shown because it may hold a password; write {}, with / ? # [ ] , @ and "
    "spaces of the user and the password percent-encoded (%2F for /)."
)


@dataclass(frozen=True)
class Server:
    """One server of an address."""

    # `user:password`, `user` or a token, as it was written; None if there is none.
    login: str | None
    # `host:port`, or either of them.
    place: str

    @property
    def written(self) -> str:
        """The server as it was written, with its login."""
        return self.place if self.login is None else f"{self.login}@{self.place}"


@dataclass(frozen=True)
class Address:
    """The address of a broker: `scheme://user:password@host:port/path?option=value`."""

    scheme: str
    servers: tuple[Server, ...]
    path: str
    query: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take an address apart, and have `hide` replace its secrets from now on; raise `ValueError` without them."""
        found = _ADDRESS.fullmatch(text)
        if found is None or not _QUERY.fullmatch(found["rest"]):
            raise _error(text)
        parts = found["servers"].split(",") if found["scheme"] in _WITH_SEVERAL_SERVERS else [found["servers"]]
        matches = [_SERVER.fullmatch(part) for part in parts]
        servers = tuple(
            Server(match["login"], part.rpartition("@")[2]) for match, part in zip(matches, parts, strict=True) if match
        )
        # A comma in a password would leave servers with and without a login.
        if len(servers) != len(parts) or len({server.login is None for server in servers}) > 1:
            raise _error(text)
        address = cls(found["scheme"], servers, found["path"] or "", found["rest"].removeprefix("?"))
        address._remember()
        remember_secret(text, address.shown)
        return address

    @property
    def shown(self) -> str:
        """The address without its secrets."""
        servers = ",".join(map(self._show, self.servers))
        query = [
            f"{name}={_HIDDEN if is_secret_name(name) else value}"
            for name, _, value in (each.partition("=") for each in self.query.split("&") if each)
        ]
        return f"{self.scheme}://{servers}{self.path}{'?' if query else ''}{'&'.join(query)}"

    @property
    def login(self) -> tuple[str | None, str | None]:
        """The user and the password, decoded; a token is a password without a user."""
        text = self.servers[0].login
        if text is None:
            return None, None
        user, colon, password = text.partition(":")
        if not colon and self.scheme in _WITH_TOKENS:
            return None, unquote(user)
        return unquote(user) or None, unquote(password) if colon else None

    @property
    def user(self) -> str | None:
        """The user, decoded, where the password is not in the address: a login without a colon is then no token."""
        return unquote((self.servers[0].login or "").partition(":")[0]) or None

    def _show(self, server: Server) -> str:
        if server.login is None:
            return server.place
        user, colon, _ = server.login.partition(":")
        if self.scheme in _WITH_TOKENS:
            return f"{_HIDDEN}@{server.place}"
        return f"{user}{f':{_HIDDEN}' if colon else ''}@{server.place}"

    def _remember(self) -> None:
        for server in self.servers:
            user, colon, password = (server.login or "").partition(":")
            secret = password if colon else user if self.scheme in _WITH_TOKENS else ""
            for each in (secret, unquote(secret)):
                remember_secret(each)
        for name, value in parse_qsl(self.query):
            if is_secret_name(name):
                remember_secret(value)


def show_address(text: str) -> str:
    """Return an address without its secrets, or what stands for one that cannot be taken apart."""
    try:
        return Address.parse(text).shown
    except ValueError:
        return _HIDDEN


def check_dsn(dsn: str) -> None:
    """Raise `ValueError` for what is no address of a Postgres, without showing it."""
    try:
        url = make_url(dsn)
    except (ArgumentError, ValueError):
        # The text is not repeated: it may be a password.
        raise ValueError("this is not a URL; write postgresql://user@host:5432/database") from None
    remember_secret(url.password or "")
    # SQLAlchemy ends a password at the first @, and takes the rest for the host.
    if "@" in f"{url.host}{url.database}" or "#" in f"{url.host}" or any(map(str.isspace, dsn)):
        remember_secret(dsn)
        raise ValueError(_UNREADABLE.format("postgresql://user:password@host:5432/database"))
    dialect, _, driver = url.drivername.partition("+")
    if dialect not in ("postgresql", "postgres") or driver not in ("", "asyncpg", "psycopg"):
        known = "postgresql://…, postgresql+asyncpg://… or postgresql+psycopg://…"
        raise ValueError(f"{url.drivername}:// is not Postgres; write {known}")


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`; a port alone is one of 127.0.0.1."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise ValueError(f"{address!r} is not an address; write host:port, or a port")
    if int(port) > _LAST_PORT:
        raise ValueError(f"{address!r} has no port: the last one is {_LAST_PORT}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _error(text: str) -> ValueError:
    # Nothing of the address is repeated: any part may belong to the password.
    remember_secret(text)
    return ValueError(_UNREADABLE.format("scheme://user:password@host:port"))
