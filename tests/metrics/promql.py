"""Reads expressions of Prometheus as far as tests need it: which metrics, labels and values they name."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_SELECTOR = re.compile(r"(?<![\w.])(?P<name>[a-z]+_\w+)(?:\{(?P<matchers>[^}]*)\})?(?!\s*\()")
_MATCHER = re.compile(r'(?P<label>\w+)\s*(?P<how>=~|!~|!=|=)\s*"(?P<value>[^"]*)"')
_GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")
_FUNCTIONS = {"histogram_quantile", "label_values"}
# Prometheus adds them to all that it scrapes.
ADDED = {"instance", "job"}


class Selector(NamedTuple):
    """A metric, the labels by which it is selected, and the values that are written out."""

    name: str
    labels: set[str]
    values: set[tuple[str, str]]


def selectors(expression: str) -> Iterator[Selector]:
    """Return the metrics of an expression."""
    plain = _GROUPING.sub("", expression)
    for found in _SELECTOR.finditer(plain):
        if found["name"] in _FUNCTIONS or not found["name"].startswith("faststream_"):
            continue
        matchers = list(_MATCHER.finditer(found["matchers"] or ""))
        written = {(each["label"], each["value"]) for each in matchers if each["how"] in ("=", "!=")}
        yield Selector(found["name"], {each["label"] for each in matchers}, written)


def grouped_by(expression: str) -> set[str]:
    """Return the labels that an expression groups by."""
    return {label.strip() for found in _GROUPING.findall(expression) for label in found.split(",")}


def outer_labels(expression: str) -> set[str]:
    """Return the labels that the result of an expression has: those of its outermost grouping."""
    found = _GROUPING.search(expression)
    return set() if found is None else {label.strip() for label in found[1].split(",")}
