"""Records a broker's events as Prometheus metrics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from faststream_outbox._faststream import EMPTY
from faststream_outbox.metrics import BACKLOG_INTERVAL, BACKLOG_STATES, MESSAGING_SYSTEM, check_interval

try:
    from faststream.prometheus.container import MetricsContainer
    from prometheus_client import CollectorRegistry, Counter, Gauge
except ImportError as error:
    raise ImportError("PrometheusRecorder needs: pip install 'faststream-outbox[prometheus]'") from error

Tags = Mapping[str, Any]
_Metric = TypeVar("_Metric", Counter, Gauge)

# FastStream's status of a handled message, by our event.
_STATUS: Final = {"acked": "acked", "nacked_retried": "nacked", "nacked_terminal": "nacked", "lease_lost": "error"}

# The gauges of a queue, by the tag of the event `backlog`: their names and descriptions.
_GAUGES: Final = {
    "oldest_ready_age": ("oldest_ready_age_seconds", "How long the oldest row that could be claimed has waited"),
    "oldest_age": ("oldest_age_seconds", "How long ago the oldest row was published"),
    "blocked_keys": ("blocked_keys", "Keys whose first row waits, or failed"),
    "parked_keys": ("parked_keys", "Keys that wait for an operator"),
}


class PrometheusRecorder:
    """Records a broker's events as Prometheus metrics.

    The families `faststream_received_…` and `faststream_published_…` are FastStream's: same names, same labels, shared
    with the middlewares of other brokers on the same registry. The label `handler` is the handler's name. The family
    `faststream_outbox_…` is the outbox's own.

    Example:
        recorder = PrometheusRecorder(registry=registry, app_name="shop")
        broker = OutboxBroker(engine, outbox_table=outbox_table, metrics_recorder=recorder)

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
        self._bus = (
            MetricsContainer(
                registry,
                metrics_prefix=metrics_prefix,
                received_messages_size_buckets=received_messages_size_buckets,
                custom_label_names=tuple(self._custom_labels),
            )
            if include_bus_metrics
            else None
        )

        def make(kind: type[_Metric], name: str, about: str, *labels: str, **options: Any) -> _Metric:
            name = f"{metrics_prefix}_outbox_{name}"
            # Brokers on one registry share the metric, as they share FastStream's.
            known: Any = registry._names_to_collectors.get(name)  # noqa: SLF001 - as FastStream does
            names = ["app_name", "broker", *labels, *self._custom_labels]
            return known or kind(name, about, names, registry=registry, **options)

        self._claims = make(Counter, "fetch_batches_total", "Claims of rows", "handler", "non_empty")
        self._dead = make(Counter, "terminal_total", "Messages that failed for good", "handler", "reason")
        self._lost = make(Counter, "lease_lost_total", "Rows whose lease was lost", "handler", "phase")
        self._dlq_written = make(
            Counter, "dlq_written_total", "Rows moved to the dead-letter table", "handler", "reason"
        )
        self._drains = make(Counter, "drain_timeout_total", "Stops that ran out of time", "handler")
        # Every process counts the same table: the latest count is right, a sum would be wrong.
        gauge = {"multiprocess_mode": "mostrecent"}
        self._rows = make(Gauge, "backlog_rows", "Rows by their state", "queue", "state", **gauge)
        self._gauges = {tag: make(Gauge, name, about, "queue", **gauge) for tag, (name, about) in _GAUGES.items()}

    def __call__(self, event: str, tags: Tags) -> None:
        """Record one event; ignore an unknown one."""
        match event:
            case "published":
                self._published(tags)
            case "backlog":
                self._backlog(tags)
            case "fetched":
                self._claims.labels(**self._labels(tags), non_empty="true" if tags.get("count") else "false").inc()
            case "dispatched":
                self._dispatched(tags)
            case "dlq_written":
                self._dlq_written.labels(**self._labels(tags), reason=tags.get("failure_reason", "")).inc()
            case "drain_timeout":
                self._drains.labels(**self._labels(tags)).inc()
            case "acked" | "nacked_retried" | "nacked_terminal" | "lease_lost" | "dispatch_abandoned":
                self._ended(event, tags)

    def _labels(self, tags: Tags, name: str = "handler", tag: str = "subscriber") -> dict[str, str]:
        custom = {label: value(tags) if callable(value) else value for label, value in self._custom_labels.items()}
        return {"app_name": self._app_name, "broker": MESSAGING_SYSTEM, name: tags.get(tag, ""), **custom}

    def _dispatched(self, tags: Tags) -> None:
        if self._bus is None:
            return
        labels = self._labels(tags)
        self._bus.received_messages_total.labels(**labels).inc()
        self._bus.received_messages_in_process.labels(**labels).inc()
        if (size := tags.get("size_bytes")) is not None:
            self._bus.received_messages_size_bytes.labels(**labels).observe(size)

    def _ended(self, event: str, tags: Tags) -> None:
        labels = self._labels(tags)
        if event == "nacked_terminal":
            self._dead.labels(**labels, reason=tags.get("reason", "")).inc()
        elif event == "lease_lost":
            self._lost.labels(**labels, phase=tags.get("phase", "")).inc()
        if self._bus is None:
            return
        # Only dispatched rows have a duration: a row may die or lose its lease before its handler is called.
        if (duration := tags.get("duration_seconds")) is not None:
            self._bus.received_messages_in_process.labels(**labels).dec()
            if event in {"acked", "nacked_retried", "nacked_terminal"}:
                self._bus.received_processed_messages_duration_seconds.labels(**labels).observe(duration)
        if (status := _STATUS.get(event)) is not None:
            self._bus.received_processed_messages_total.labels(**labels, status=status).inc()
        if (exception := tags.get("exception_type")) is not None:
            self._bus.received_processed_messages_exceptions_total.labels(**labels, exception_type=exception).inc()

    def _published(self, tags: Tags) -> None:
        if self._bus is None:
            return
        labels = self._labels(tags, "destination", "queue")
        status = tags.get("status", "success")
        # A failed batch counts as one; a timer that existed already counts as none.
        count = 1 if status == "error" else tags.get("count", 0)
        if count:
            self._bus.published_messages_total.labels(**labels, status=status).inc(count)
        if (duration := tags.get("duration_seconds")) is not None:
            self._bus.published_messages_duration_seconds.labels(**labels).observe(duration)
        if (exception := tags.get("exception_type")) is not None:
            self._bus.published_messages_exceptions_total.labels(**labels, exception_type=exception).inc()

    def _backlog(self, tags: Tags) -> None:
        labels = self._labels(tags, "queue", "queue")
        for state in BACKLOG_STATES:
            self._rows.labels(**labels, state=state).set(tags.get(state, 0))
        for tag, gauge in self._gauges.items():
            gauge.labels(**labels).set(tags.get(tag) or 0)
