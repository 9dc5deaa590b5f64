"""Records a broker's events as OpenTelemetry metrics; the spans come from `OutboxTelemetryMiddleware`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from faststream_outbox.metrics import BACKLOG_INTERVAL, BACKLOG_STATES, MESSAGING_SYSTEM, check_interval

try:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter
except ImportError as error:
    raise ImportError("OpenTelemetryRecorder needs: pip install 'faststream-outbox[opentelemetry]'") from error

Tags = Mapping[str, Any]
_Observe = Callable[[CallbackOptions], Iterable[Observation]]


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
        if include_bus_metrics:
            self._process_duration = meter.create_histogram(
                "messaging.process.duration", "s", "Measures the duration of process operation."
            )
            self._publish_duration = meter.create_histogram(
                "messaging.publish.duration", "s", "Measures the duration of publish operation."
            )
        if include_bus_metrics and include_messages_counters:
            self._process_messages = meter.create_counter(
                "messaging.process.messages", "message", "Measures the number of processed messages."
            )
            self._publish_messages = meter.create_counter(
                "messaging.publish.messages", "message", "Measures the number of published messages."
            )
        self._claims = meter.create_counter("messaging.outbox.fetch.batches", "batch", "Claims of rows")
        self._lost = meter.create_counter("messaging.outbox.lease_lost", "event", "Rows whose lease was lost")
        self._dlq_written = meter.create_counter(
            "messaging.outbox.dlq_written", "event", "Rows moved to the dead-letter table"
        )
        self._drains = meter.create_counter("messaging.outbox.drain_timeout", "event", "Stops that ran out of time")
        self._watch_backlog(meter)

    def _watch_backlog(self, meter: Meter) -> None:
        # Observed at each collection: a gauge that is only set would be reported once.
        self._backlogs: dict[str, Tags] = {}

        def gauge(name: str, nothing: float) -> _Observe:
            return lambda _: [
                Observation(tags.get(name) or nothing, _attributes(tags)) for tags in list(self._backlogs.values())
            ]

        def rows(_: CallbackOptions) -> list[Observation]:
            return [
                Observation(tags.get(state) or 0, {**_attributes(tags), "messaging.outbox.state": state})
                for tags in list(self._backlogs.values())
                for state in BACKLOG_STATES
            ]

        meter.create_observable_gauge("messaging.outbox.backlog", [rows], "row", "Rows by their state")
        meter.create_observable_gauge(
            "messaging.outbox.oldest_ready_age",
            [gauge("oldest_ready_age", 0.0)],
            "s",
            "How long the oldest row that could be claimed has waited",
        )
        meter.create_observable_gauge(
            "messaging.outbox.oldest_age", [gauge("oldest_age", 0.0)], "s", "How long ago the oldest row was published"
        )
        meter.create_observable_gauge(
            "messaging.outbox.blocked_keys", [gauge("blocked_keys", 0)], "key", "Keys whose first row waits, or failed"
        )
        meter.create_observable_gauge(
            "messaging.outbox.parked_keys", [gauge("parked_keys", 0)], "key", "Keys that wait for an operator"
        )

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
