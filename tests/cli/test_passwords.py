"""Passwords and tokens are hidden, in every place where a URL can hold them."""

import pytest

from faststream_outbox.cli.errors import hide


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://relay:secret@host/vhost", "amqp://relay:***@host/vhost"),
        ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
        ("amqp://relay:sec@secret@host/", "amqp://relay:***@host/"),
        ("nats://secret@host:4222", "nats://***@host:4222"),
        ("nats://a:secret@one:4222,b:secret@two:4222", "nats://***@two:4222"),
        ("nats://one:4222,two:4222", "nats://one:4222,two:4222"),
        ("redis://host:6379/0?password=secret&db=1", "redis://host:6379/0?password=***&db=1"),
        ("postgresql://host/shop?user=a&password=secret", "postgresql://host/shop?user=a&password=***"),
        ("kafka://host:9092?sasl_plain_password=secret", "kafka://host:9092?sasl_plain_password=***"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert hide(f"Relaying orders to {url} now.") == f"Relaying orders to {shown} now."
