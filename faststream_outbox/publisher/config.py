"""What is known of a publisher when it is declared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from faststream_outbox._faststream import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream_outbox.configs import OutboxBrokerConfig


@dataclass(kw_only=True)
class OutboxPublisherSpecificationConfig(PublisherSpecificationConfig):
    """For the AsyncAPI document."""

    queue: str


@dataclass(kw_only=True)
class OutboxPublisherConfig(PublisherUsecaseConfig):
    """For publishing."""

    _outer_config: OutboxBrokerConfig = field(default_factory=OutboxBrokerConfig)

    queue: str
    headers: Mapping[str, Any] | None
    reply_to: str
