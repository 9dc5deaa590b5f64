"""Routers, under the name by which users import them."""

from faststream_outbox.broker.router import OutboxPublisher, OutboxRoute, OutboxRouter

__all__ = ["OutboxPublisher", "OutboxRoute", "OutboxRouter"]
