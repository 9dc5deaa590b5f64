"""Routes as text: `orders=orders-topic`, `events=header:topic`, `events=header:topic|events`."""

from collections.abc import Iterable
from typing import Final

from faststream_outbox.cli.errors import UsageError
from faststream_outbox.relay import Route, by_header

_HEADER: Final = "header:"


def split_routes(routes: Iterable[str]) -> dict[str, str]:
    """Read what was given as `--route queue=destination`."""
    found: dict[str, str] = {}
    for text in routes:
        queue, equals, destination = text.partition("=")
        if not (queue and equals and destination):
            raise UsageError(f"--route {text!r} is no route: --route queue=destination.")
        if queue in found:
            raise UsageError(f"Queue {queue!r} has two routes: {found[queue]!r} and {destination!r}.")
        found[queue] = destination
    return found


def make_route(queue: str, destination: str) -> Route:
    """Make of a destination what a relay understands."""
    if not destination.startswith(_HEADER):
        return destination
    name, bar, default = destination.removeprefix(_HEADER).partition("|")
    if not name or (bar and not default):
        raise UsageError(
            f"The route of queue {queue!r} is {destination!r}: header:name, or header:name|default with a destination."
        )
    return by_header(name, default=default or None)
