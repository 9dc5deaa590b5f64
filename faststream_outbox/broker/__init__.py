"""What a user holds: the broker, its routers, and how subscribers and publishers are declared on them."""

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.broker.router import OutboxRoute, OutboxRouter

__all__ = ["OutboxBroker", "OutboxRoute", "OutboxRouter"]
