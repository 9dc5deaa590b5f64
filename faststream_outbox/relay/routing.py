"""Finds the destination of a row: fixed for its queue, or from a header or a function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction

from faststream_outbox.runtime.telemetry import PlainError
from faststream_outbox.storage import OutboxRow
from faststream_outbox.storage.checks import check_name

Route = str | Callable[[OutboxRow], str]
"""A destination in the form of the broker that receives it, or a function that returns one for a row."""


class UnroutableError(PlainError):
    """A row has no destination."""


class Routes:
    """The routes of all queues that a relay reads."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        if not isinstance(routes, Mapping) or not routes:
            raise ValueError(
                'routes is empty or no mapping: give each queue a destination, {"orders": "orders-topic"}.'
            )
        for queue, route in routes.items():
            check_name("queue", queue)
            if isinstance(route, str):
                if not route:
                    raise ValueError(f"The route of queue {queue!r} is empty: name a destination.")
            elif not callable(route):
                raise TypeError(
                    f"The route of queue {queue!r} is {route!r}: give a destination, or a function of a row."
                )
            elif iscoroutinefunction(route) or iscoroutinefunction(type(route).__call__):
                raise TypeError(
                    f"The route of queue {queue!r} is a coroutine function, and nothing awaits it: give a plain one."
                )
        self._routes = dict(routes)
        self.queues = list(routes)

    @property
    def fixed(self) -> list[str]:
        """The destinations that do not depend on a row."""
        known = (route.default if isinstance(route, ByHeader) else route for route in self._routes.values())
        return [destination for destination in known if isinstance(destination, str)]

    @property
    def fixed_by_queue(self) -> dict[str, str]:
        """The destinations of queues whose rows all go to one."""
        return {queue: route for queue, route in self._routes.items() if isinstance(route, str)}

    @property
    def known(self) -> list[str]:
        """The destinations that are known before any row: fixed ones, and those that a header may name."""
        allowed = (route.allow or () for route in self._routes.values() if isinstance(route, ByHeader))
        named = (each for names in allowed for each in names if not each.endswith("*"))
        return list(dict.fromkeys([*self.fixed, *named]))

    @property
    def open(self) -> list[str]:
        """The queues whose rows may go to destinations that only the rows name."""
        return [queue for queue, route in self._routes.items() if not isinstance(route, str) and not _is_closed(route)]

    def destination(self, row: OutboxRow) -> str:
        """Return the destination of a row."""
        route = self._routes[row.queue]
        if isinstance(route, str):
            return route
        try:
            destination = route(row)
        except UnroutableError:
            raise
        except Exception as error:
            raise UnroutableError(f"The route of queue {row.queue!r} raised {type(error).__name__}.") from error
        if not isinstance(destination, str) or not destination:
            raise UnroutableError(f"The route of queue {row.queue!r} returned {destination!r}, not a destination.")
        return destination


@dataclass(frozen=True, slots=True)
class ByHeader:
    """Returns the destination of a row from one of its headers."""

    name: str
    default: str | None = None
    # The values that are destinations: names, or beginnings of names that end in `*`; None allows any value.
    allow: tuple[str, ...] | None = None

    def __call__(self, row: OutboxRow) -> str:
        """Return the header's value, or the default."""
        value = (row.headers or {}).get(self.name)
        if value is None:
            if self.default is None:
                raise UnroutableError(f"Row {row.id} has no header {self.name!r}, which names its destination.")
            return self.default
        destination = str(value)
        if self.allow is not None and not any(_matches(destination, each) for each in self.allow):
            raise UnroutableError(
                f"Header {self.name!r} of row {row.id} is {destination[:100]!r}, which by_header(…, allow=…) does not "
                "allow."
            )
        return destination


def _is_closed(route: Callable[[OutboxRow], str]) -> bool:
    """Return whether all destinations of a route are in its list."""
    allow = route.allow if isinstance(route, ByHeader) else None
    return allow is not None and not any(each.endswith("*") for each in allow)


def _matches(destination: str, allowed: str) -> bool:
    return destination.startswith(allowed[:-1]) if allowed.endswith("*") else destination == allowed


def by_header(
    name: str, *, default: str | None = None, allow: Sequence[str] | None = None
) -> Callable[[OutboxRow], str]:
    """Return a route that reads the destination from a header.

    The publisher of a row chooses where the relay sends it, with the relay's rights; `allow` bounds that choice.

    Args:
        name: The header.
        default: The destination of rows without this header; by default they are refused.
        allow: The destinations that the header may name; one that ends in `*` stands for all that begin so. By default
            any. A row with another one is refused.

    Example:
        Relay(
            broker,
            to=kafka,
            routes={
                "events": by_header("topic", default="events", allow=["events", "audit-*"])
            },
        )

    """
    if isinstance(allow, str):
        raise TypeError(f"allow is a list of destinations: [{allow!r}].")
    return ByHeader(name, default, None if allow is None else tuple(allow))
