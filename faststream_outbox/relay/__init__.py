"""Sends rows of the outbox to Kafka, RabbitMQ, NATS and Redis."""

from faststream_outbox.relay.relay import Relay
from faststream_outbox.relay.routing import Route, by_header
from faststream_outbox.relay.targets.base import DestinationCheck
from faststream_outbox.storage.postgres.statements.debezium import debezium_view_ddl

__all__ = ["DestinationCheck", "Relay", "Route", "by_header", "debezium_view_ddl"]
