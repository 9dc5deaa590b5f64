"""The options of a subscriber have one name, one check and one default, wherever they are given; so have a relay's."""

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData

from faststream_outbox import AdvisoryLocks, ConstantRetry, OutboxBroker, OutboxRouter, make_outbox_table
from faststream_outbox.cli.database import make_engine
from faststream_outbox.cli.errors import UsageError
from faststream_outbox.cli.relay.brokers import make_broker
from faststream_outbox.cli.relay.logs import LOGGER
from faststream_outbox.cli.relay.outbox import make_outbox
from faststream_outbox.cli.relay.program import make_relay
from faststream_outbox.cli.relay.settings import RelaySettings
from faststream_outbox.engine.options import DEFAULTS, SubscriberOptions
from faststream_outbox.fastapi import OutboxRouter as FastAPIRouter
from faststream_outbox.relay import Relay
from faststream_outbox.relay.relay import RELAY_DEFAULTS
from tests.relay.memory_target import Memory

NAMES = {field.name for field in fields(SubscriberOptions)}
SIGNATURES = [OutboxBroker.subscriber, OutboxRouter.subscriber, FastAPIRouter.subscriber]
# FastStream's own keywords, which the loops do not read.
FASTSTREAMS = {
    *("self", "queues", "ack_policy", "middlewares", "dependencies", "parser", "decoder", "codec", "filter"),
    *("no_reply", "persistent", "title", "description", "include_in_schema"),
}
# A relay always sends batches, which fill while others are sent, and no handler of it publishes.
NOT_OF_A_RELAY = {"batch", "max_wait_ms", "propagate_inbound_headers", "publish_timeout"}
OF_A_RELAY = sorted(NAMES - NOT_OF_A_RELAY)


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
    assert explained(text).keys() >= NAMES


def explained(docstring: str) -> dict[str, str]:
    """Return what a docstring says about each parameter."""
    arguments = docstring.partition("\nArgs:\n")[2].partition("\n\n")[0]
    return {
        name: " ".join(text.split())
        for name, text in re.findall(r"^    (\w+): ((?:.|\n {8})+)", arguments, re.MULTILINE)
    }


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


def test_every_option_that_a_relay_can_use_is_a_keyword_of_it() -> None:
    parameters = inspect.signature(Relay, eval_str=True).parameters
    types = inspect.get_annotations(SubscriberOptions, eval_str=True)
    assert sorted(set(parameters) - {"broker", "to", "routes", "source", "cloudevents"}) == OF_A_RELAY
    for name in OF_A_RELAY:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == getattr(RELAY_DEFAULTS, name), name
        assert parameters[name].annotation == types[name], name


def test_a_relay_explains_its_options_as_a_subscriber_does() -> None:
    of_a_relay = explained(inspect.getdoc(Relay) or "")
    of_a_subscriber = explained(inspect.getdoc(OutboxBroker.subscriber) or "")
    assert of_a_relay.keys() >= set(OF_A_RELAY)
    same = ("terminal_batch_size", "terminal_flush_interval_ms", "retry_batch_size", "retry_flush_interval_ms")
    assert {name: of_a_relay[name] for name in same} == {name: of_a_subscriber[name] for name in same}
    for name in OF_A_RELAY:
        if type(value := getattr(RELAY_DEFAULTS, name)) in (int, float):
            assert re.search(rf"\b{value:g}\b.? by default", of_a_relay[name]), name


def test_only_these_defaults_of_a_relay_are_not_those_of_a_subscriber() -> None:
    different = {name for name in NAMES if getattr(RELAY_DEFAULTS, name) != getattr(DEFAULTS, name)}
    assert different == {"max_workers", "fetch_batch_size", "min_fetch_interval", "batch", "max_records"}
    assert RELAY_DEFAULTS.capacity == 51_200, "docs/relay.md has this number"


def make_relay_in_code(**options: Any) -> Any:
    broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()))
    return Relay(broker, to=Memory(), routes={"orders": "somewhere"}, **options)


def test_what_is_given_to_a_relay_reaches_the_struct() -> None:
    given = {name: GIVEN[name] for name in OF_A_RELAY}
    assert make_relay_in_code(**given)._options == SubscriberOptions(**given, batch=True)
    assert make_relay_in_code()._options == RELAY_DEFAULTS


IN_THE_PROGRAM = GIVEN | {"ordering": "advisory-locks", "retry_strategy": "constant?delay_seconds=5"}
NEEDED: dict[str, Any] = {"dsn": "postgresql://h/d", "to": "redis://h", "routes": {"orders": "somewhere"}}


def make_relay_of_the_program(options: dict[str, Any], file: Path | None = None) -> Any:
    settings = RelaySettings.load({**NEEDED, **options}, file)
    outbox = make_outbox(settings, make_engine(settings), lambda _event, _tags: None)
    return make_relay(settings, outbox, make_broker(settings.to, LOGGER))


@pytest.mark.parametrize("source", ["options", "variables", "file"])
def test_what_is_given_to_the_program_reaches_the_struct(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {name: IN_THE_PROGRAM[name] for name in OF_A_RELAY}
    file = None
    if source == "variables":
        for name, value in given.items():
            monkeypatch.setenv(f"OUTBOX_{name.upper()}", str(value))
    if source == "file":
        file = tmp_path / "relay.toml"
        file.write_text("".join(f"{name} = {value!r}\n" for name, value in given.items()))
    relay = make_relay_of_the_program(given if source == "options" else {}, file)
    assert relay._options == SubscriberOptions(**{name: GIVEN[name] for name in OF_A_RELAY}, batch=True)


def test_the_program_has_the_defaults_of_a_relay() -> None:
    assert make_relay_of_the_program({})._options == RELAY_DEFAULTS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_workers", 0),
        ("max_records", 0),
        ("fetch_batch_size", -1),
        ("min_fetch_interval", 0.0),
        ("min_fetch_interval", 11.0),
        ("max_fetch_interval", math.nan),
        ("lease_ttl_seconds", 1e9),
        ("max_deliveries", 0),
        ("terminal_batch_size", 0),
        ("terminal_flush_interval_ms", 60_000.0),
        ("retry_batch_size", 0),
        ("retry_flush_interval_ms", -1.0),
    ],
)
def test_a_wrong_value_is_refused_in_the_same_words_everywhere(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name) as expected:
        SubscriberOptions(batch=True, **{name: value})
    with pytest.raises(ValueError, match=name) as of_a_relay:
        make_relay_in_code(**{name: value})
    assert str(of_a_relay.value) == str(expected.value)
    with pytest.raises(UsageError) as of_the_program:
        make_relay_of_the_program({name: value})
    assert str(of_the_program.value) == f"--{name.replace('_', '-')}: {expected.value}"
