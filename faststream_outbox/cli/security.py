"""How one gets into the broker that rows go to: `[to.security]`."""

import ssl
from collections.abc import Mapping
from typing import Any, Final

from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

from faststream_outbox.cli.errors import UsageError
from faststream_outbox.cli.file import unknown
from faststream_outbox.cli.passwords import remember

_MECHANISMS: Final = {"plain": SASLPlaintext, "scram-sha-256": SASLScram256, "scram-sha-512": SASLScram512}
_KEYS: Final = ("mechanism", "username", "password", "tls", "ca_file", "cert_file", "key_file")


def make_security(table: Mapping[str, Any], *, sasl: bool = False, context: bool = True) -> BaseSecurity | None:
    """Make what a FastStream broker takes as `security`, without a context for a client that reads files itself."""
    if not table:
        return None
    for name in table:
        if name not in _KEYS:
            raise unknown("The key of [to.security]", name, _KEYS)
    tls = bool(table.get("tls", any(each in table for each in ("ca_file", "cert_file"))))
    how: dict[str, Any] = {"use_ssl": tls, "ssl_context": _context(table) if tls and context else None}
    if "username" not in table:
        return BaseSecurity(**how)
    mechanism = table.get("mechanism", "plain")
    if mechanism not in _MECHANISMS:
        raise UsageError(f"The mechanism of [to.security] is one of {', '.join(_MECHANISMS)}, not {mechanism!r}.")
    if mechanism != "plain" and not sasl:
        raise UsageError(f"The mechanism {mechanism!r} of [to.security] is Kafka's; leave it out for other brokers.")
    password = str(table.get("password", ""))
    remember(password)
    return _MECHANISMS[mechanism](username=str(table["username"]), password=password, **how)


def client_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Tell librdkafka of the files, in its own words."""
    names = {"ca_file": "ssl.ca.location", "cert_file": "ssl.certificate.location", "key_file": "ssl.key.location"}
    return {names[name]: table[name] for name in names if name in table}


def _context(table: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=table.get("ca_file"))
        if "cert_file" in table:
            context.load_cert_chain(table["cert_file"], table.get("key_file"))
    except OSError as error:
        raise UsageError(f"The certificates of [to.security] cannot be loaded: {error}") from error
    return context
