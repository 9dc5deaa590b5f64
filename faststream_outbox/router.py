"""Routers, under the name by which users import them."""

from faststream_outbox.broker.router import OutboxRoute, OutboxPublisher, OutboxRouter

__all__ = ["OutboxRoute", "OutboxPublisher", "OutboxRouter"]
