"""Every parameter of what users call is described where an IDE shows it, and under the name that it has."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from faststream_outbox import (
    HashShards,
    Inbox,
    OutboxBroker,
    OutboxResponse,
    OutboxRouter,
    Relay,
    TestOutboxBroker,
    fastapi,
    make_dlq_table,
    make_inbox_table,
    make_operations_tables,
    make_outbox_table,
    make_shards_table,
    outbox_autovacuum_ddl,
)
from faststream_outbox.client import OutboxClient
from faststream_outbox.metrics.opentelemetry import OpenTelemetryRecorder
from faststream_outbox.metrics.prometheus import PrometheusRecorder
from faststream_outbox.opentelemetry import OutboxTelemetryMiddleware
from faststream_outbox.prometheus import OutboxPrometheusMiddleware
from faststream_outbox.relay import by_header
from faststream_outbox.router import OutboxPublisher, OutboxRoute

CALLED = [
    HashShards,
    Inbox,
    OpenTelemetryRecorder,
    OutboxBroker,
    OutboxBroker.include_router,
    OutboxBroker.publish,
    OutboxBroker.publisher,
    OutboxBroker.subscriber,
    OutboxClient,
    OutboxPrometheusMiddleware,
    OutboxPublisher,
    OutboxResponse,
    OutboxRoute,
    OutboxRouter,
    OutboxTelemetryMiddleware,
    PrometheusRecorder,
    Relay,
    TestOutboxBroker,
    by_header,
    fastapi.OutboxRouter,
    fastapi.OutboxRouter.publisher,
    fastapi.OutboxRouter.subscriber,
    make_dlq_table,
    make_inbox_table,
    make_operations_tables,
    make_outbox_table,
    make_shards_table,
    outbox_autovacuum_ddl,
]


def shown(called: Callable[..., Any]) -> str:
    """The docstring that an IDE shows at a call: that of `__init__`, or of the class if `__init__` has none."""
    init = called.__init__.__doc__ if inspect.isclass(called) else None
    return inspect.cleandoc(init or called.__doc__ or "")


def described(called: Callable[..., Any], section: str = "Args") -> list[str]:
    arguments = re.search(rf"^{section}:\n((?:    .*\n|\n)+)", shown(called) + "\n", re.MULTILINE)
    return re.findall(r"^    (\w+):", arguments[1], re.MULTILINE) if arguments else []


def parameters(called: Callable[..., Any]) -> list[str]:
    function = called.__init__ if inspect.isclass(called) else called
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("called", CALLED, ids=lambda called: f"{called.__module__}.{called.__qualname__}")
def test_every_parameter_is_described_in_its_order(called: Callable[..., Any]) -> None:
    assert described(called) == parameters(called)


@pytest.mark.parametrize("broker", [OutboxBroker, OutboxRouter, fastapi.OutboxRouter])
def test_help_of_the_constructor_describes_them(broker: type[Any]) -> None:
    assert "Args:\n" in (broker.__init__.__doc__ or "")
