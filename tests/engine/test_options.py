"""The options of a subscriber have one name and one default, wherever they are given."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from sqlalchemy import MetaData

from faststream_outbox import AdvisoryLocks, ConstantRetry, OutboxBroker, OutboxRouter, make_outbox_table
from faststream_outbox.engine.options import DEFAULTS, SubscriberOptions
from faststream_outbox.fastapi import OutboxRouter as FastAPIRouter
from faststream_outbox.relay import Relay

NAMES = {field.name for field in fields(SubscriberOptions)}
SIGNATURES = [OutboxBroker.subscriber, OutboxRouter.subscriber, FastAPIRouter.subscriber]
# FastStream's own keywords, which the loops do not read.
FASTSTREAMS = {
    *("self", "queues", "ack_policy", "middlewares", "dependencies", "parser", "decoder", "codec", "filter"),
    *("no_reply", "persistent", "title", "description", "include_in_schema"),
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_every_option_is_a_keyword_with_the_default_of_the_struct(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function, eval_str=True).parameters
    types = inspect.get_annotations(SubscriberOptions, eval_str=True)
    others = {name for name in parameters if not name.startswith("response_model")} - FASTSTREAMS
    assert others == NAMES
    for name in NAMES:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == getattr(DEFAULTS, name), name
        assert parameters[name].annotation == types[name], name


def test_every_option_is_explained_where_an_ide_shows_it() -> None:
    text = inspect.getdoc(OutboxBroker.subscriber) or ""
    assert [name for name in sorted(NAMES) if f"\n    {name}: " not in text] == []


def test_a_relay_takes_its_options_from_the_same_struct() -> None:
    parameters = inspect.signature(Relay).parameters
    own = {"broker", "to", "routes", "source", "cloudevents"}
    assert set(parameters) - own == {"ordering", "on_dead", "retry_strategy", "lease_ttl_seconds"}
    for name in set(parameters) - own:
        assert parameters[name].default == getattr(DEFAULTS, name), name


GIVEN: dict[str, Any] = {
    "max_workers": 2,
    "fetch_batch_size": 7,
    "min_fetch_interval": 0.3,
    "max_fetch_interval": 0.4,
    "lease_ttl_seconds": 30.0,
    "max_deliveries": 3,
    "on_dead": "park",
    "retry_strategy": ConstantRetry(delay_seconds=5),
    "terminal_batch_size": 11,
    "terminal_flush_interval_ms": 12.0,
    "retry_batch_size": 13,
    "retry_flush_interval_ms": 14.0,
    "batch": True,
    "max_records": 15,
    "max_wait_ms": 16.0,
    "ordering": AdvisoryLocks(),
    "propagate_inbound_headers": True,
    "publish_timeout": 17.0,
}


@pytest.mark.parametrize("make", [OutboxBroker, OutboxRouter, FastAPIRouter], ids=["broker", "router", "FastAPI"])
def test_what_is_given_to_a_decorator_reaches_the_struct(make: Callable[..., Any]) -> None:
    assert GIVEN.keys() == NAMES
    assert [name for name in NAMES if GIVEN[name] == getattr(DEFAULTS, name)] == []
    owner = make() if make is OutboxRouter else make(outbox_table=make_outbox_table(MetaData()))
    assert owner.subscriber("orders", **GIVEN).config.options == SubscriberOptions(**GIVEN)


def test_sizes_that_depend_on_others() -> None:
    single, batch = SubscriberOptions(), SubscriberOptions(batch=True)
    assert (single.rows_per_call, single.rows_per_claim, single.rows_per_key) == (1, 250, 100)
    assert (batch.rows_per_call, batch.rows_per_claim, batch.rows_per_key) == (500, 500, 500)
    assert SubscriberOptions(batch=True, max_records=20).rows_per_claim == 250
    assert SubscriberOptions(fetch_batch_size=3, max_workers=4).capacity == 8
