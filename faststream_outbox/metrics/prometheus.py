"""Records a broker's events as Prometheus metrics."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from faststream_outbox._faststream import EMPTY
from faststream_outbox._installation import needs_extra
from faststream_outbox.metrics import BACKLOG_INTERVAL, COUNTERS, GAUGES, MESSAGING_SYSTEM, STATES, Tags, check_interval

try:
    from faststream.prometheus.container import MetricsContainer
    from prometheus_client import CollectorRegistry, Counter, Gauge
except ImportError as error:
    raise ImportError(needs_extra("PrometheusRecorder", "prometheus")) from error

_Metric = TypeVar("_Metric", Counter, Gauge)

# FastStream's status of a handled message, by our event.
_STATUS: Final = {"acked": "acked", "nacked_retried": "nacked", "nacked_terminal": "nacked", "lease_lost": "error"}
# The label of a counted event, and the tag that is its value.
_LABELS: Final = {
    "fetched": ("non_empty", "count"),
    "lease_lost": ("phase", "phase"),
    "dlq_written": ("reason", "failure_reason"),
    "nacked_terminal": ("reason", "reason"),
}


class PrometheusRecorder:
    """Records a broker's events as Prometheus metrics.

    The families `faststream_received_…` and `faststream_published_…` are FastStream's: same names, same labels, shared
    with the middlewares of other brokers on the same registry. The label `handler` is the handler's name. The family
    `faststream_outbox_…` is the outbox's own.

    Example:
        recorder = PrometheusRecorder(registry=registry, app_name="shop")
        broker = OutboxBroker(
            engine, outbox_table=outbox_table, dlq_table=dlq_table, metrics_recorder=recorder
        )

    Args:
        registry: The registry of the metrics.
        app_name: The value of the label `app_name`.
        metrics_prefix: The prefix of the metrics' names.
        received_messages_size_buckets: The buckets of the histogram of message sizes; FastStream's by default.
        custom_labels: Further labels, each a text or a function of an event's tags.
        include_bus_metrics: False leaves FastStream's families to `OutboxPrometheusMiddleware`.
        backlog_interval: How often the rows in the table are counted, in seconds; None for never.

    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Tags], str]] | None = None,
        include_bus_metrics: bool = True,
        backlog_interval: float | None = BACKLOG_INTERVAL,
    ) -> None:
        self.backlog_interval = check_interval(backlog_interval)
        self._app_name = "" if app_name is EMPTY else app_name
        self._custom_labels = dict(custom_labels or {})
        self._bus: MetricsContainer | None = None
        if include_bus_metrics:
            self._bus = MetricsContainer(
                registry,
                metrics_prefix=metrics_prefix,
                received_messages_size_buckets=received_messages_size_buckets,
                custom_label_names=tuple(self._custom_labels),
            )

        def make(kind: type[_Metric], name: str, about: str, *labels: str, **options: Any) -> _Metric:
            name = f"{metrics_prefix}_outbox_{name}"
            # Brokers on one registry share the metric, as they share FastStream's.
            known: Any = registry._names_to_collectors.get(name)  # noqa: SLF001 - as FastStream does
            names = ["app_name", "broker", *labels, *self._custom_labels]
            return known or kind(name, about, names, registry=registry, **options)

        counted = (*COUNTERS, ("nacked_terminal", "terminal", "", "Messages that failed for good"))
        self._counters = {
            event: make(Counter, f"{name.replace('.', '_')}_total", about, "handler", *_LABELS.get(event, ())[:1])
            for event, name, _, about in counted
        }
        # Every process counts the same table: the latest count is right, a sum would be wrong.
        gauge = {"multiprocess_mode": "mostrecent"}
        self._rows = make(Gauge, "backlog_rows", "Rows by their state", "queue", "state", **gauge)
        self._gauges = {
            tag: make(Gauge, f"{tag}_seconds" if unit == "s" else tag, about, "queue", **gauge)
            for tag, unit, about in GAUGES
        }

    def __call__(self, event: str, tags: Tags) -> None:
        """Record one event; ignore an unknown one."""
        if (counter := self._counters.get(event)) is not None:
            labels = self._labels(tags)
            if event in _LABELS:
                label, tag = _LABELS[event]
                value = tags.get(tag, "")
                labels[label] = str(bool(value)).lower() if event == "fetched" else value
            self._child(counter, labels).inc(tags.get("count", 0) if event == "keys_contended" else 1)
        match event:
            case "backlog":
                self._backlog(tags)
            case "published" if self._bus:
                self._published(self._bus, tags)
            case "dispatched" if self._bus:
                self._dispatched(self._bus, tags)
            case "acked" | "nacked_retried" | "nacked_terminal" | "lease_lost" | "dispatch_abandoned" if self._bus:
                self._ended(self._bus, event, tags)

    def _child(self, metric: Any, labels: dict[str, str]) -> Any:
        """Return the part of a metric that has these labels."""
        return metric.labels(**labels)

    def _labels(self, tags: Tags, name: str = "handler", tag: str = "subscriber") -> dict[str, str]:
        custom = {label: value(tags) if callable(value) else value for label, value in self._custom_labels.items()}
        return {"app_name": self._app_name, "broker": MESSAGING_SYSTEM, name: tags.get(tag, ""), **custom}

    def _dispatched(self, bus: MetricsContainer, tags: Tags) -> None:
        labels = self._labels(tags)
        self._child(bus.received_messages_total, labels).inc()
        self._child(bus.received_messages_in_process, labels).inc()
        if (size := tags.get("size_bytes")) is not None:
            self._child(bus.received_messages_size_bytes, labels).observe(size)

    def _ended(self, bus: MetricsContainer, event: str, tags: Tags) -> None:
        labels = self._labels(tags)
        # Only dispatched rows have a duration: a row may die or lose its lease before its handler is called.
        if (duration := tags.get("duration_seconds")) is not None:
            self._child(bus.received_messages_in_process, labels).dec()
            if event in {"acked", "nacked_retried", "nacked_terminal"}:
                self._child(bus.received_processed_messages_duration_seconds, labels).observe(duration)
        if (status := _STATUS.get(event)) is not None:
            self._child(bus.received_processed_messages_total, {**labels, "status": status}).inc()
        if (exception := tags.get("exception_type")) is not None:
            self._child(bus.received_processed_messages_exceptions_total, {**labels, "exception_type": exception}).inc()

    def _published(self, bus: MetricsContainer, tags: Tags) -> None:
        labels = self._labels(tags, "destination", "queue")
        status = tags.get("status", "success")
        # A failed batch counts as one; a timer that existed already counts as none.
        count = 1 if status == "error" else tags.get("count", 0)
        if count:
            self._child(bus.published_messages_total, {**labels, "status": status}).inc(count)
        if (duration := tags.get("duration_seconds")) is not None:
            self._child(bus.published_messages_duration_seconds, labels).observe(duration)
        if (exception := tags.get("exception_type")) is not None:
            self._child(bus.published_messages_exceptions_total, {**labels, "exception_type": exception}).inc()

    def _backlog(self, tags: Tags) -> None:
        labels = self._labels(tags, "queue", "queue")
        for state in STATES:
            self._rows.labels(**labels, state=state).set(tags.get(state, 0))
        for tag, gauge in self._gauges.items():
            gauge.labels(**labels).set(tags.get(tag) or 0)
