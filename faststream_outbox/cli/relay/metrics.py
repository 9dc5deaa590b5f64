"""The Prometheus metrics of a relay: those of the recorder, and what only its status knows."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from faststream_outbox.cli.relay.status import Status
from faststream_outbox.cli.secrets import hide
from faststream_outbox.metrics import MESSAGING_SYSTEM
from faststream_outbox.metrics.prometheus import PrometheusRecorder


class _Recorder(PrometheusRecorder):
    """Keeps the parts of metrics that it has found: to look for six of them costs more than all else about a row.

    Only on a registry of its own: another user of a registry may remove them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._children: dict[tuple[Any, ...], Any] = {}

    def _child(self, metric: Any, labels: dict[str, str]) -> Any:
        """Return the part of a metric that has these labels, which are always in the same order."""
        key = (metric, *labels.values())
        if (child := self._children.get(key)) is None:
            child = self._children[key] = super()._child(metric, labels)
        return child


class RelayMetrics:
    """A registry of the relay's own, and the recorder that fills it; a scrape reads memory only."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, status: Status, app_name: str) -> None:
        self._queues = frozenset(status.queues)
        self._registry = CollectorRegistry()
        self._recorder = _Recorder(registry=self._registry, app_name=app_name)
        self._registry.register(_StatusCollector(status, app_name))
        ProcessCollector(registry=self._registry)

    def __call__(self, event: str, tags: Mapping[str, Any]) -> None:
        """Record an event of the outbox; queues of the table that the relay does not read are left out."""
        if event != "backlog" or tags.get("queue") in self._queues:
            self._recorder(event, tags)

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class _StatusCollector(Collector):
    """Makes metrics of the status when they are asked for."""

    def __init__(self, status: Status, app_name: str) -> None:
        self._status = status
        self._common = {"app_name": app_name, "broker": MESSAGING_SYSTEM}

    def collect(self) -> Iterator[Metric]:
        """Return the rows by route and outcome, and whether the broker or a destination accepts nothing."""
        status = self._status
        about = "Rows by what became of them: relayed, retried or refused"
        rows = CounterMetricFamily(
            "faststream_outbox_relay_rows", about, labels=self._labels("queue", "route", "outcome")
        )
        for queue, route in status.routes.items():
            for outcome, count in status.outcomes(queue).items():
                rows.add_metric(self._values(queue, hide(route), outcome), count)
        yield rows
        about = "1 while the relay runs and its broker answers"
        up = GaugeMetricFamily("faststream_outbox_relay_up", about, labels=self._labels("to"))
        up.add_metric(self._values(status.to), float(status.state == "running"))
        yield up
        about = "1 for a destination that accepts nothing while the broker answers"
        paused = GaugeMetricFamily(
            "faststream_outbox_relay_destination_paused", about, labels=self._labels("destination")
        )
        for destination in status.paused_destinations:
            paused.add_metric(self._values(hide(destination)), 1.0)
        yield paused
        about = "How many destinations accept nothing while the broker answers; the first have their name above"
        number = GaugeMetricFamily("faststream_outbox_relay_destinations_paused", about, labels=self._labels())
        number.add_metric(self._values(), len(status.relay.paused_destinations))
        yield number
        about = "1 for a queue that an operator has paused"
        queues = GaugeMetricFamily("faststream_outbox_relay_queue_paused", about, labels=self._labels("queue"))
        for queue in status.queues:
            queues.add_metric(self._values(queue), float(queue in status.relay.paused_queues))
        yield queues

    def _labels(self, *names: str) -> list[str]:
        return [*self._common, *names]

    def _values(self, *values: str) -> list[str]:
        return [*self._common.values(), *values]
