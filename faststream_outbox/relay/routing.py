"""Where the rows of a queue go: to one place, or to one that a header or a function names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from faststream_outbox.runtime.telemetry import PlainError
from faststream_outbox.storage import OutboxRow
from faststream_outbox.storage.checks import check_name

# A destination in the words of the broker it is sent to, or what finds one for a row.
Route = str | Callable[[OutboxRow], str]


class UnroutableError(PlainError):
    """A row for which there is no destination."""


class Routes:
    """The destination of every row of some queues."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        if not isinstance(routes, Mapping) or not routes:
            raise ValueError('routes tells where the rows of each queue go: {"orders": "orders-topic"}.')
        for queue, route in routes.items():
            check_name("queue", queue)
            if isinstance(route, str):
                if not route:
                    raise ValueError(f"The route of queue {queue!r} is empty: name a destination.")
            elif not callable(route):
                raise TypeError(
                    f"The route of queue {queue!r} is a destination, or a function of a row, not {route!r}."
                )
        self._routes = dict(routes)

    @property
    def queues(self) -> list[str]:
        """The queues that are relayed."""
        return list(self._routes)

    @property
    def fixed(self) -> list[str]:
        """The destinations that are known before there is a row."""
        known = (route.default if isinstance(route, ByHeader) else route for route in self._routes.values())
        return [destination for destination in known if isinstance(destination, str)]

    def destination(self, row: OutboxRow) -> str:
        """Find where a row goes."""
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
            raise UnroutableError(f"The route of queue {row.queue!r} gave {destination!r}, which is no destination.")
        return destination


@dataclass(frozen=True, slots=True)
class ByHeader:
    """Finds the destination of a row in one of its headers."""

    name: str
    default: str | None = None

    def __call__(self, row: OutboxRow) -> str:
        """Read the header."""
        destination = (row.headers or {}).get(self.name, self.default)
        if destination is None:
            raise UnroutableError(f"Row {row.id} has no header {self.name!r}, which was to say where it goes.")
        return str(destination)


def by_header(name: str, *, default: str | None = None) -> Callable[[OutboxRow], str]:
    """Route rows by one of their headers.

    Example:
        Relay(broker, to=kafka, routes={"events": by_header("topic", default="events")})

    """
    return ByHeader(name, default)
