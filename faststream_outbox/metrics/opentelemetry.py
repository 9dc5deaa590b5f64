"""Records a broker's events as OpenTelemetry metrics; the spans come from `OutboxTelemetryMiddleware`."""

from functools import partial

from faststream_outbox._installation import needs_extra
from faststream_outbox.metrics import BACKLOG_INTERVAL, COUNTERS, GAUGES, MESSAGING_SYSTEM, STATES, Tags, check_interval

try:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter
except ImportError as error:
    raise ImportError(needs_extra("OpenTelemetryRecorder", "opentelemetry")) from error


class OpenTelemetryRecorder:
    """Records a broker's events as OpenTelemetry metrics.

    `messaging.process.…` and `messaging.publish.…` are the metrics of FastStream's telemetry middlewares,
    `messaging.outbox.…` the outbox's own.

    Example:
        recorder = OpenTelemetryRecorder(meter_provider=meter_provider)
        broker = OutboxBroker(
            engine, outbox_table=outbox_table, dlq_table=dlq_table, metrics_recorder=recorder
        )

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
        self._counters = {
            event: counter(f"messaging.outbox.{name}", unit, about) for event, name, unit, about in COUNTERS
        }
        # Observed at each collection: a gauge that is only set would be reported once.
        self._backlogs: dict[str, Tags] = {}
        gauge = meter.create_observable_gauge
        gauge("messaging.outbox.backlog", [self._observe_rows], "row", "Rows by their state")
        for tag, unit, about in GAUGES:
            gauge(f"messaging.outbox.{tag}", [partial(self._observe, tag, 0.0 if unit == "s" else 0)], unit, about)

    def _observe_rows(self, _: CallbackOptions) -> list[Observation]:
        return [
            Observation(tags.get(state) or 0, {**_attributes(tags), "messaging.outbox.state": state})
            for tags in list(self._backlogs.values())
            for state in STATES
        ]

    def _observe(self, tag: str, default: float, _: CallbackOptions) -> list[Observation]:
        return [Observation(tags.get(tag) or default, _attributes(tags)) for tags in list(self._backlogs.values())]

    def __call__(self, event: str, tags: Tags) -> None:
        """Record one event; ignore an unknown one."""
        if self._with_bus and event in ("acked", "nacked_retried", "nacked_terminal"):
            self._processed(event, tags)
        match event:
            case "fetched":
                self._counters[event].add(1, _attributes(tags, "receive"))
            case "keys_contended":
                self._counters[event].add(tags.get("count", 0), _attributes(tags, "receive"))
            case "nacked_retried":
                self._counters[event].add(1, _attributes(tags, "process", **_error(tags)))
            case "lease_lost":
                phase = {"messaging.outbox.lease_phase": tags.get("phase", ""), "error.type": "lease_lost"}
                self._counters[event].add(1, _attributes(tags, "process", **phase))
            case "dlq_written":
                reason = {"messaging.outbox.dlq_reason": tags.get("failure_reason", "")}
                self._counters[event].add(1, _attributes(tags, "process", **reason, **_error(tags)))
            case "drain_timeout":
                self._counters[event].add(1, _attributes(tags, "process"))
            case "published" if self._with_bus:
                self._published(tags)
            case "backlog":
                self._backlogs[tags.get("queue", "")] = tags

    def _processed(self, event: str, tags: Tags) -> None:
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
