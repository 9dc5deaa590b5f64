"""The configuration of a broker, which its subscribers and publishers read, and the format of its access log."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from faststream import ContextRepo
from faststream.response import PublishCommand

from faststream_outbox._faststream import BrokerConfig, DefaultLoggerStorage, LoggerProto, get_broker_logger
from faststream_outbox.client import AbstractOutboxClient
from faststream_outbox.envelope import CORRELATION_ID
from faststream_outbox.metrics import MetricsRecorder
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import Store
from faststream_outbox.wakeup.wakeup import Wakeup

# Returns the text of an exception for the dead-letter table and for our log records; None leaves it out.
LastExceptionRenderer = Callable[[BaseException], str | None]

# The width of the column for the ids of rows in the access log.
_ID_WIDTH: Final = 10


@dataclass(kw_only=True)
class OutboxBrokerConfig(BrokerConfig):
    """FastStream's configuration and ours; a router has the values of its broker once it is included."""

    client: AbstractOutboxClient | None = None
    wakeup: Wakeup | None = None
    metrics_recorder: MetricsRecorder | None = None
    last_exception_renderer: LastExceptionRenderer | None = None
    # The name of this outbox in messages to other brokers.
    source: str = ""
    # Whether `id_generator` is the user's; if it is not, a message without a correlation id uses its row's id.
    generates_ids: bool = False
    # The queues that relays of this broker send.
    relayed_queues: set[str] = field(default_factory=set)
    # Classes that must not annotate a handler's parameter, each with the annotation to use instead.
    default_driver_annotations: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        """The store of the broker."""
        if self.client is None:
            raise RuntimeError("This router belongs to no broker yet. Include it first: broker.include_router(router).")
        return self.client.store

    def give_correlation_id(self, cmd: PublishCommand) -> None:
        """Set the correlation id of a command that has none to what the user's `id_generator` returns."""
        if not self.generates_ids or cmd.correlation_id or cmd.headers.get(CORRELATION_ID):
            return
        made: object = self.id_generator()
        if not isinstance(made, str):
            kind = type(made).__name__
            raise TypeError(f"id_generator returned {made!r}, a {kind}, and a correlation id is a str: return a str.")
        cmd.correlation_id = made

    def monitor(self, subscriber: str = "", queues: Sequence[str] = ()) -> Monitor:
        """Make the monitor of a subscriber, or of a part of the broker itself."""
        return Monitor(
            get_logger=lambda: self.logger.logger,
            recorder=self.metrics_recorder,
            renderer=self.last_exception_renderer,
            subscriber=subscriber,
            queues=queues,
        )

    @cached_property
    def publishing_monitor(self) -> Monitor:
        """The monitor of what is published outside of handlers."""
        return self.monitor()


class OutboxLoggerStorage(DefaultLoggerStorage):
    """Makes the logger of FastStream's access log, with a column for the queue."""

    __slots__ = ("_queue_width",)

    def __init__(self) -> None:
        super().__init__()
        self._queue_width = len("queue")

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the column for a subscriber's queues."""
        self._queue_width = max(self._queue_width, len(params.get("queue", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger, made at the first call."""
        if not (logger := self._get_logger_ref()):
            columns = f"%(queue)-{self._queue_width}s | %(message_id)-{_ID_WIDTH}s"
            logger = get_broker_logger(
                name="outbox",
                default_context={"queue": ""},
                message_id_ln=_ID_WIDTH,
                fmt=f"%(asctime)s %(levelname)-8s - {columns} - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger
