"""What a subscriber is declared with, in the two structs that FastStream asks for."""

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
from faststream_outbox.engine.options import DEFAULTS, SubscriberOptions


@dataclass(kw_only=True)
class OutboxSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """What the AsyncAPI document needs."""

    queues: Sequence[str]


@dataclass(kw_only=True)
class OutboxSubscriberConfig(SubscriberUsecaseConfig):
    """What consuming needs: FastStream's own settings, the queues and the options."""

    _outer_config: OutboxBrokerConfig = field(default_factory=OutboxBrokerConfig)

    queues: Sequence[str]
    options: SubscriberOptions = DEFAULTS
    middlewares: Sequence[BrokerMiddleware[Any]] = ()
    filter: Filter[Any] = default_filter
    # The warnings that were given; one of them may depend on the broker of a router that is included later.
    warnings_given: set[str] = field(default_factory=set)

    @property
    def given_ack_policy(self) -> AckPolicy:
        """The policy of the subscriber, or else of its broker and routers; EMPTY if none of them has one."""
        return self._outer_config.ack_policy if self._ack_policy is EMPTY else self._ack_policy

    @property
    def ack_policy(self) -> AckPolicy:
        """What becomes of a message without a verdict: by the subscriber's policy, the broker's, or the default."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is AckPolicy.ACK_FIRST:
                raise SetupError(
                    "AckPolicy.ACK_FIRST deletes a message before it is handled, so a crash would lose it, which an "
                    "outbox must not. Use AckPolicy.REJECT_ON_ERROR for messages that are to be tried once."
                )
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR
