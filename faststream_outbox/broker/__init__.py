"""The broker and its routers, on which users declare subscribers and publishers."""

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.broker.router import OutboxRoute, OutboxRouter

__all__ = ["OutboxBroker", "OutboxRoute", "OutboxRouter"]
