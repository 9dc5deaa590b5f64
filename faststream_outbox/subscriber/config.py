"""What is known of a subscriber when it is declared."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from faststream_outbox._faststream import (
    EMPTY,
    BrokerMiddleware,
    Filter,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
    default_filter,
)
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.engine.pipeline import PipelineOptions
from faststream_outbox.retry import RetryDelayProto, RetryStrategyProto


@dataclass(kw_only=True)
class OutboxSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """For the AsyncAPI document."""

    queues: Sequence[str]


@dataclass(kw_only=True)
class OutboxSubscriberConfig(SubscriberUsecaseConfig):
    """For consuming."""

    _outer_config: OutboxBrokerConfig = field(default_factory=OutboxBrokerConfig)

    queues: Sequence[str]
    retry_strategy: RetryStrategyProto | RetryDelayProto
    options: PipelineOptions = field(default_factory=PipelineOptions)
    # Whether a handler is given a list of messages.
    batch: bool = False
    propagate_inbound_headers: bool = False
    # How long another broker may take to confirm what a handler returned.
    publish_timeout: float | None = None
    middlewares: Sequence[BrokerMiddleware[Any]] = ()
    filter: Filter[Any] = default_filter

    @property
    def ack_policy(self) -> AckPolicy:
        """What happens to a message whose handler gave no verdict: the subscriber's, the broker's, or the safe one."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is AckPolicy.ACK_FIRST:
                raise SetupError(
                    "AckPolicy.ACK_FIRST deletes a message before it is handled, so a crash would lose it, and an "
                    "outbox loses nothing. Use AckPolicy.REJECT_ON_ERROR for messages that are to be tried once."
                )
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR
