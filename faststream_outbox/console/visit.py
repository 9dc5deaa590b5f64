"""One look at a page: who looks, at what, and what the page reads; the pages are functions of a `Visit`."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from starlette.datastructures import QueryParams

from faststream_outbox.console.access import Access
from faststream_outbox.console.errors import MissingError, PageError, RefusedError
from faststream_outbox.console.site import Site
from faststream_outbox.operations import DeadLetter, Message, OutboxOperations
from faststream_outbox.storage import SessionOrConnection

# Rows of a page: what is read at a glance and on one screen or two.
PAGE_SIZE: Final = 50
# Ids are numbers of eight bytes.
LARGEST_ID: Final = 2**63 - 1

Row = TypeVar("Row", Message, DeadLetter)


def id_of(text: str) -> int:
    """Return the id that a path or a form names; raise `MissingError` for what no row has."""
    # Python refuses to read numbers of thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_ID)) and 0 < int(text) <= LARGEST_ID):
        raise MissingError(f"{text[:40]} is no id: ids are numbers, from 1.")
    return int(text)


class Fields(dict[str, str]):
    """The fields of a search that were filled in; others are empty, as a template reads them."""

    def __missing__(self, name: str) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Visit:
    """A page that is being looked at. Everything it reads is read in one read-only transaction, `session`."""

    site: Site
    access: Access
    query: QueryParams
    session: SessionOrConnection | None
    path: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operations(self) -> OutboxOperations:
        """What can be read."""
        return self.site.operations

    def given(self, *names: str) -> Fields:
        """Return those of the query's fields that were filled in."""
        found = ((name, self.query.get(name, "").strip()) for name in names)
        return Fields({name: value for name, value in found if value})

    def may(self, action: str, queue: str | None = None) -> bool:
        """Return whether a page should offer an act."""
        return not self.site.read_only and self.access.may(action, queue)

    def redact(self, rows: Iterable[Row]) -> list[Row]:
        """Return rows as they may be shown to this user: of queues that the user sees, after the redaction."""
        return [self.site.redact(row) for row in rows if self.access.sees(row.queue)]

    def check_queue(self, queue: str | None) -> None:
        """Raise `RefusedError` if the user does not see a queue."""
        if not self.access.sees(queue):
            raise RefusedError(f"{self.access.user} has no access to the queue {queue}.")

    def number_in_path(self, name: str = "id") -> int:
        """Return an id of the path."""
        return id_of(self.path[name])


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows: a template, its values, the status of the response, and what reading it cost."""

    template: str
    values: Mapping[str, Any]
    status: int = 200
    # How many statements were needed to read it.
    statements: int = 0


Loader = Callable[[Visit], Awaitable[Shown]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console.

    Attributes:
        path: Its path below the console.
        load: Reads what it shows.
        nav: The entry of the menu that it belongs to.
        is_live: Whether the page updates itself.

    """

    path: str
    load: Loader
    nav: str
    is_live: bool = False


def filter_of(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Return a filter of these values; raise `PageError` with its sentence if one is wrong."""
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise PageError(str(error)) from error
