"""For the tests of applications: the broker and the client without a database."""

from faststream_outbox.client import FakeOutboxClient
from faststream_outbox.testing.broker import TestOutboxBroker, fake_session

__all__ = ["FakeOutboxClient", "TestOutboxBroker", "fake_session"]
