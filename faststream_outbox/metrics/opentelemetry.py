"""Records a broker's events as OpenTelemetry metrics; the spans come from `OutboxTelemetryMiddleware`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from faststream_outbox.metrics import BACKLOG_INTERVAL, BACKLOG_STATES, MESSAGING_SYSTEM, check_interval

try:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter
except ImportError as error:
    raise ImportError("OpenTelemetryRecorder needs: pip install 'faststream-outbox[opentelemetry]'") from error

Tags = Mapping[str, Any]
_Observe = Callable[[CallbackOptions], Iterable[Observation]]

# The gauges of a queue: the tag of the event `backlog`, the unit, the value without a row, and the description.
_GAUGES: Final = (
    ("oldest_ready_age", "s", 0.0, "How long the oldest row that could be claimed has waited"),
    ("oldest_age", "s", 0.0, "How long ago the oldest row was published"),
    ("blocked_keys", "key", 0, "Keys whose first row waits, or failed"),
    ("parked_keys", "key", 0, "Keys that wait for an operator"),
)


class OpenTelemetryRecorder:
    """Records a broker's events as OpenTelemetry metrics.

    `messaging.process.…` and `messaging.publish.…` are the metrics of FastStream's telemetry middlewares,
    `messaging.outbox.…` the outbox's own.

    Example:
        recorder = OpenTelemetryRecorder(meter_provider=meter_provider)
        broker = OutboxBroker(engine, outbox_table=outbox_table, metrics_recorder=recorder)

    Args:
        meter_provider: The provider of the meter; the global one by default.
        meter: The meter, instead of one from `meter_provider`.
        include_messages_counters: True counts messages; False only times them.
        include_bus_metrics: False leaves `messaging.process.…` and `messaging.publish.…` to
            `OutboxTelemetryMiddleware`.
        backlog_interval: How often the rows in the table are counted, in seconds; None for never.

    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = False,
        include_bus_metrics: bool = True,
        backlog_interval: float | None = BACKLOG_INTERVAL,
    ) -> None:
        self.backlog_interval = check_interval(backlog_interval)
        meter = meter or get_meter(__name__, meter_provider=meter_provider)
        self._with_bus = include_bus_metrics
        self._with_counters = include_messages_counters
        histogram, counter = meter.create_histogram, meter.create_counter
        if include_bus_metrics:
            about = "Measures the duration of {} operation."
            self._process_duration = histogram("messaging.process.duration", "s", about.format("process"))
            self._publish_duration = histogram("messaging.publish.duration", "s", about.format("publish"))
        if include_bus_metrics and include_messages_counters:
            about = "Measures the number of {} messages."
            self._process_messages = counter("messaging.process.messages", "message", about.format("processed"))
            self._publish_messages = counter("messaging.publish.messages", "message", about.format("published"))
        self._claims = counter("messaging.outbox.fetch.batches", "batch", "Claims of rows")
        self._lost = counter("messaging.outbox.lease_lost", "event", "Rows whose lease was lost")
        self._dlq_written = counter("messaging.outbox.dlq_written", "event", "Rows moved to the dead-letter table")
        self._drains = counter("messaging.outbox.drain_timeout", "event", "Stops that ran out of time")
        self._watch_backlog(meter)

    def _watch_backlog(self, meter: Meter) -> None:
        # Observed at each collection: a gauge that is only set would be reported once.
        self._backlogs: dict[str, Tags] = {}

        def observe(name: str, default: float) -> _Observe:
            return lambda _: [
                Observation(tags.get(name) or default, _attributes(tags)) for tags in list(self._backlogs.values())
            ]

        def rows(_: CallbackOptions) -> list[Observation]:
            return [
                Observation(tags.get(state) or 0, {**_attributes(tags), "messaging.outbox.state": state})
                for tags in list(self._backlogs.values())
                for state in BACKLOG_STATES
            ]

        meter.create_observable_gauge("messaging.outbox.backlog", [rows], "row", "Rows by their state")
        for name, unit, default, about in _GAUGES:
            meter.create_observable_gauge(f"messaging.outbox.{name}", [observe(name, default)], unit, about)

    def __call__(self, event: str, tags: Tags) -> None:
        """Record one event; ignore an unknown one."""
        match event:
            case "fetched":
                self._claims.add(1, _attributes(tags, "receive"))
            case "acked" | "nacked_retried" | "nacked_terminal":
                self._processed(event, tags)
            case "lease_lost":
                phase = {"messaging.outbox.lease_phase": tags.get("phase", ""), "error.type": "lease_lost"}
                self._lost.add(1, _attributes(tags, "process", **phase))
            case "dlq_written":
                reason = {"messaging.outbox.dlq_reason": tags.get("failure_reason", "")}
                self._dlq_written.add(1, _attributes(tags, "process", **reason, **_error(tags)))
            case "drain_timeout":
                self._drains.add(1, _attributes(tags, "process"))
            case "published":
                self._published(tags)
            case "backlog":
                self._backlogs[tags.get("queue", "")] = tags

    def _processed(self, event: str, tags: Tags) -> None:
        if not self._with_bus:
            return
        more = {"messaging.outbox.status": "acked" if event == "acked" else "nacked", **_error(tags)}
        if event == "nacked_terminal":
            more["messaging.outbox.terminal_reason"] = tags.get("reason", "")
        attributes = _attributes(tags, "process", **more)
        # Only dispatched rows have a duration: a row may die before its handler is called.
        if (duration := tags.get("duration_seconds")) is not None:
            self._process_duration.record(duration, attributes)
        if self._with_counters:
            self._process_messages.add(1, attributes)

    def _published(self, tags: Tags) -> None:
        if not self._with_bus:
            return
        status = {"messaging.outbox.status": tags.get("status", "success")}
        attributes = _attributes(tags, "publish", **status, **_error(tags))
        if (duration := tags.get("duration_seconds")) is not None:
            self._publish_duration.record(duration, attributes)
        if self._with_counters and (count := tags.get("count", 0)):
            self._publish_messages.add(count, attributes)


def _attributes(tags: Tags, operation: str = "", **more: str) -> dict[str, str]:
    attributes = {"messaging.system": MESSAGING_SYSTEM, "messaging.destination.name": tags.get("queue", ""), **more}
    if operation:
        attributes["messaging.operation"] = operation
    if handler := tags.get("subscriber"):
        attributes["messaging.outbox.handler"] = handler
    return attributes


def _error(tags: Tags) -> dict[str, str]:
    exception = tags.get("exception_type")
    return {} if exception is None else {"error.type": exception}
