"""Makes subscribers, and refuses what cannot work where it is written."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final

from faststream.middlewares import AckPolicy

from faststream_outbox._faststream import BrokerMiddleware, CallsCollection, Filter
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.engine.giving_up import OnDead, check_on_dead
from faststream_outbox.engine.pipeline import PipelineOptions
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.retry import DEFAULT_RETRY, NoRetry, RetryDelayProto, RetryStrategyProto
from faststream_outbox.storage.checks import check_count, check_name, check_number
from faststream_outbox.storage.ordering import NO_SHARDS, HashShards, Ordering, check_ordering
from faststream_outbox.subscriber.config import OutboxSubscriberConfig, OutboxSubscriberSpecificationConfig
from faststream_outbox.subscriber.specification import OutboxSubscriberSpecification
from faststream_outbox.subscriber.usecase import OutboxSubscriber

# Longer intervals and leases are slips of a unit.
_LONGEST: Final = 7 * 86_400.0
# A round trip is shared by so many rows that it hardly counts, and a hundred are soon handled.
_FETCHED: Final = 250
# What one statement settles; beyond that nothing is saved.
_RECORDS: Final = 500


def create_subscriber(
    *,
    queues: str | Sequence[str],
    max_workers: int,
    fetch_batch_size: int | None,
    min_fetch_interval: float,
    max_fetch_interval: float,
    lease_ttl_seconds: float,
    max_deliveries: int | None,
    on_dead: OnDead,
    retry_strategy: RetryStrategyProto | RetryDelayProto | None,
    ack_policy: AckPolicy,
    terminal_batch_size: int,
    terminal_flush_interval_ms: float,
    retry_batch_size: int,
    retry_flush_interval_ms: float,
    batch: bool,
    max_records: int | None,
    max_wait_ms: float,
    ordering: Ordering,
    propagate_inbound_headers: bool,
    publish_timeout: float | None,
    middlewares: Sequence[BrokerMiddleware[Any]],
    filter: Filter[Any],  # noqa: A002 - FastStream's name
    no_reply: bool,
    config: OutboxBrokerConfig,
    title: str | None,
    description: str | None,
    include_in_schema: bool,
) -> OutboxSubscriber:
    """Make a subscriber."""
    names = _check_queues(queues)
    records, max_wait = _check_batch(batch=batch, max_records=max_records, max_wait_ms=max_wait_ms)
    check_on_dead(on_dead)
    if fetch_batch_size is None:
        fetch_batch_size = max(_FETCHED, records)
    options = PipelineOptions(
        max_workers=check_count("max_workers", max_workers),
        max_records=records,
        max_wait=max_wait,
        ordering=_check_ordering(ordering, config),
        claim_batch_size=check_count("fetch_batch_size", fetch_batch_size),
        min_interval=_check_positive("min_fetch_interval", min_fetch_interval),
        max_interval=_check_positive("max_fetch_interval", max_fetch_interval),
        lease_seconds=_check_positive("lease_ttl_seconds", lease_ttl_seconds),
        max_deliveries=None if max_deliveries is None else check_count("max_deliveries", max_deliveries),
        on_dead=on_dead,
        terminal_batch_size=check_count("terminal_batch_size", terminal_batch_size),
        terminal_flush_interval=check_number("terminal_flush_interval_ms", terminal_flush_interval_ms) / 1000,
        retry_batch_size=check_count("retry_batch_size", retry_batch_size),
        retry_flush_interval=check_number("retry_flush_interval_ms", retry_flush_interval_ms) / 1000,
    )
    _check_strategy(retry_strategy)
    subscriber_config = OutboxSubscriberConfig(
        queues=names,
        options=options,
        batch=batch,
        retry_strategy=retry_strategy or DEFAULT_RETRY,
        propagate_inbound_headers=propagate_inbound_headers,
        publish_timeout=None if publish_timeout is None else _check_positive("publish_timeout", publish_timeout),
        middlewares=middlewares,
        filter=filter,
        no_reply=no_reply,
        _outer_config=config,
        _ack_policy=ack_policy,
    )
    _check_together(subscriber_config, strategy_given=retry_strategy is not None)
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
        raise TypeError(f"queues is a queue's name, or several, not {type(queues).__name__}.")
    names = [queues] if isinstance(queues, str) else list(queues)
    if not names:
        raise ValueError("A subscriber needs a queue: broker.subscriber('orders').")
    for name in names:
        check_name("queue", name)
    if len(set(names)) < len(names):
        raise ValueError(f"A queue is named twice in {names}: once is enough.")
    return names


def _check_batch(*, batch: bool, max_records: int | None, max_wait_ms: float) -> tuple[int, float]:
    if not isinstance(batch, bool):
        raise TypeError(f"batch is True or False, not {batch!r}. How many records it has is max_records.")
    max_wait = check_number("max_wait_ms", max_wait_ms) / 1000
    if not batch:
        if max_records is not None or max_wait:
            raise ValueError("max_records and max_wait_ms are about batches: give batch=True too, or leave them out.")
        return 1, 0.0
    return _RECORDS if max_records is None else check_count("max_records", max_records), max_wait


def _check_ordering(ordering: Ordering, config: OutboxBrokerConfig) -> Ordering:
    check_ordering(ordering)
    # A router's subscribers learn of their broker, and its tables, later.
    shared = isinstance(ordering, HashShards) and ordering.is_shared
    if shared and config.client is not None and not config.store.keeps_shards:
        raise ValueError(NO_SHARDS)
    return ordering


def _check_positive(what: str, value: float) -> float:
    if not 0 < check_number(what, value) <= _LONGEST:
        raise ValueError(f"{what} is more than 0 seconds, and {_LONGEST:g} at most: a week.")
    return float(value)


def _check_strategy(strategy: object) -> None:
    if isinstance(strategy, type):
        raise TypeError(f"retry_strategy is a strategy, not the class of one: {strategy.__name__}(…).")
    asked = ("get_next_attempt_at", "get_next_attempt_delay")
    if strategy is not None and not any(callable(getattr(strategy, name, None)) for name in asked):
        raise TypeError(f"retry_strategy has {' or '.join(asked)}, and {type(strategy).__name__} has not.")


def _check_together(config: OutboxSubscriberConfig, *, strategy_given: bool) -> None:
    options, policy = config.options, config.ack_policy
    if options.min_interval > options.max_interval:
        raise ValueError(
            f"min_fetch_interval ({options.min_interval:g}) is more than max_fetch_interval ({options.max_interval:g})."
        )
    for name, interval in (
        ("terminal_flush_interval_ms", options.terminal_flush_interval),
        ("retry_flush_interval_ms", options.retry_flush_interval),
        ("max_wait_ms", options.max_wait),
    ):
        if interval * 2 > options.lease_seconds:
            raise ValueError(f"{name} must be well below lease_ttl_seconds: the row is leased while it waits.")
    retries = strategy_given and not isinstance(config.retry_strategy, NoRetry)
    if retries and policy in (AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK):
        _warn(f"retry_strategy is hardly ever asked under {policy}: a message that fails is not tried again.")
    if retries and options.max_deliveries == 1:
        _warn("max_deliveries=1 lets no message be tried twice, so retry_strategy is never asked to good effect.")


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=5)
