"""Makes subscribers, and refuses at registration what cannot work."""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from faststream.middlewares import AckPolicy

from faststream_outbox._faststream import BrokerMiddleware, CallsCollection, Filter
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.retry import NoRetry
from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.ordering import NO_SHARDS, HashShards
from faststream_outbox.subscriber.config import OutboxSubscriberConfig, OutboxSubscriberSpecificationConfig
from faststream_outbox.subscriber.specification import OutboxSubscriberSpecification
from faststream_outbox.subscriber.usecase import OutboxSubscriber

# The frames between a line of the user and a warning.
_PACKAGES: Final = ("faststream", "faststream_outbox")


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
    warn_of_contradictions(subscriber_config)
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


def warn_of_contradictions(config: OutboxSubscriberConfig) -> None:
    """Warn of options that contradict each other, of each once; a router may get the policy of its broker later."""
    named = ", ".join(repr(f"{config._outer_config.prefix}{queue}") for queue in config.queues)  # noqa: SLF001 - ours
    for message in _contradictions(config.options, config.ack_policy, config.given_ack_policy):
        if message not in config.warnings_given:
            config.warnings_given.add(message)
            # With its queue, because Python shows the same text of the same line only once.
            _warn(f"Subscriber of {named}: {message}")


def _contradictions(options: SubscriberOptions, policy: AckPolicy, given: AckPolicy) -> Iterator[str]:
    if isinstance(options.retry_strategy, NoRetry):
        # NoRetry alone says what is meant; this policy beside it says the opposite.
        if given is AckPolicy.NACK_ON_ERROR:
            yield (
                "AckPolicy.NACK_ON_ERROR asks for another attempt, and NoRetry() gives none: the first failure is "
                "final, and the message goes to the dead-letter table, or is deleted where there is none. Give a "
                "strategy that retries, or AckPolicy.REJECT_ON_ERROR."
            )
    elif options.retry_strategy is not None:
        if policy in (AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK):
            yield f"retry_strategy is hardly ever asked under {policy}: a message that fails is not tried again."
        if options.max_deliveries == 1:
            yield "max_deliveries=1 lets no message be tried twice, so retry_strategy has no effect."


def _warn(message: str) -> None:
    """Warn at the line of the user: the first outside of FastStream and of this package."""
    frame, level = sys._getframe(), 1  # noqa: SLF001 - `inspect` reads the source of every frame
    while frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
