"""Makes subscribers, and refuses at registration what cannot work."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from faststream.middlewares import AckPolicy

from faststream_outbox._faststream import EMPTY, BrokerMiddleware, CallsCollection, Filter
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.retry import NoRetry
from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.ordering import NO_SHARDS, HashShards
from faststream_outbox.subscriber.config import OutboxSubscriberConfig, OutboxSubscriberSpecificationConfig
from faststream_outbox.subscriber.specification import OutboxSubscriberSpecification
from faststream_outbox.subscriber.usecase import OutboxSubscriber


def create_subscriber(
    *,
    queues: str | Sequence[str],
    options: SubscriberOptions,
    ack_policy: AckPolicy,
    middlewares: Sequence[BrokerMiddleware[Any]],
    filter: Filter[Any],  # noqa: A002 - FastStream's name
    no_reply: bool,
    config: OutboxBrokerConfig,
    title: str | None,
    description: str | None,
    include_in_schema: bool,
) -> OutboxSubscriber:
    """Make a subscriber; the options have checked themselves."""
    names = _check_queues(queues)
    _check_shards(options, config)
    subscriber_config = OutboxSubscriberConfig(
        queues=names,
        options=options,
        middlewares=middlewares,
        filter=filter,
        no_reply=no_reply,
        _outer_config=config,
        _ack_policy=ack_policy,
    )
    _warn_of_unused_strategy(options, subscriber_config.ack_policy)
    _warn_of_final_nack(options, ack_policy if ack_policy is not EMPTY else config.ack_policy)
    calls = CallsCollection[OutboxDelivery]()
    specification = OutboxSubscriberSpecification(
        config,
        OutboxSubscriberSpecificationConfig(
            queues=names, title_=title, description_=description, include_in_schema=include_in_schema
        ),
        calls,
    )
    return OutboxSubscriber(subscriber_config, specification, calls)


def _check_queues(queues: str | Sequence[str]) -> list[str]:
    if not isinstance(queues, Iterable):
        raise TypeError(f"queues is the name of a queue, or a list of names, not {type(queues).__name__}.")
    names = [queues] if isinstance(queues, str) else list(queues)
    if not names:
        raise ValueError("A subscriber needs a queue: broker.subscriber('orders').")
    for name in names:
        check_name("queue", name)
    if len(set(names)) < len(names):
        raise ValueError(f"A queue is named twice in {names}: name it once.")
    return names


def _check_shards(options: SubscriberOptions, config: OutboxBrokerConfig) -> None:
    # A router has no client, and no tables, until a broker includes it; the pipeline checks again when it starts.
    shared = isinstance(options.ordering, HashShards) and options.ordering.is_shared
    if shared and config.client is not None and not config.store.keeps_shards:
        raise ValueError(NO_SHARDS)


def _warn_of_unused_strategy(options: SubscriberOptions, policy: AckPolicy) -> None:
    if options.retry_strategy is None or isinstance(options.retry_strategy, NoRetry):
        return
    if policy in (AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK):
        _warn(f"retry_strategy is hardly ever asked under {policy}: a message that fails is not tried again.")
    if options.max_deliveries == 1:
        _warn("max_deliveries=1 lets no message be tried twice, so retry_strategy has no effect.")


def _warn_of_final_nack(options: SubscriberOptions, given: AckPolicy) -> None:
    # NoRetry alone says what is meant; this policy beside it says the opposite.
    if given is AckPolicy.NACK_ON_ERROR and isinstance(options.retry_strategy, NoRetry):
        _warn(
            "AckPolicy.NACK_ON_ERROR asks for another attempt, and NoRetry() gives none: the first failure is final, "
            "and the message goes to the dead-letter table, or is deleted where there is none. Give a strategy that "
            "retries, or AckPolicy.REJECT_ON_ERROR."
        )


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=6)  # the line that calls `subscriber(…)`
