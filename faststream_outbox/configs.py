"""What a broker knows and its subscribers and publishers ask for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from faststream_outbox._faststream import BrokerConfig
from faststream_outbox.client import AbstractOutboxClient
from faststream_outbox.metrics import MetricsRecorder, emit, ignore
from faststream_outbox.storage import Store
from faststream_outbox.wakeup.wakeup import Wakeup

# Renders what a handler raised for the dead-letter table; None keeps nothing of it.
LastExceptionRenderer = Callable[[BaseException], str | None]


@dataclass(kw_only=True)
class OutboxBrokerConfig(BrokerConfig):
    """The broker's own half of the configuration; a router has none of it until a broker includes the router."""

    client: AbstractOutboxClient | None = None
    wakeup: Wakeup | None = None
    metrics_recorder: MetricsRecorder = ignore
    last_exception_renderer: LastExceptionRenderer | None = None
    # The name of this outbox in what leaves it for other brokers.
    source: str = ""
    # Classes that a handler's parameter may not be annotated with as they are, and what to use instead.
    default_driver_annotations: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        """The rows."""
        if self.client is None:
            raise RuntimeError("This router belongs to no broker yet: broker.include_router(router).")
        return self.client.store

    def record(self, event: str, **tags: Any) -> None:
        """Tell the metrics recorder."""
        emit(self.metrics_recorder, event, tags, self.logger)
