"""Reads metrics back: from a Prometheus registry, and from an OpenTelemetry reader."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry


def samples(registry: CollectorRegistry, name: str, *labels: str) -> dict[Any, float]:
    """All values of a metric, by those of its labels that are asked for."""
    found = {}
    for metric in registry.collect():
        for sample in metric.samples:
            if sample.name == name:
                values = tuple(sample.labels[label] for label in labels)
                found[values[0] if len(labels) == 1 else values] = sample.value
    return found


class Meters:
    """A meter provider, and what it was told: numbers as they are, histograms by their count."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def read(self, name: str, *attributes: str) -> dict[Any, float]:
        found: dict[Any, float] = {}
        for point in self._points(name):
            told = dict(point.attributes or {})
            values = tuple(told.get(attribute) for attribute in attributes)
            key = values[0] if len(attributes) == 1 else values
            found[key] = found.get(key, 0) + (point.count if isinstance(point, HistogramDataPoint) else point.value)
        return found

    def _points(self, name: str) -> list[HistogramDataPoint | NumberDataPoint]:
        data = self._reader.get_metrics_data()
        return [
            point  # type: ignore[misc]  # of the two kinds that are made here
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
