"""The contract of operators' reads: pages of rows and counts, none of which reads a whole table."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from faststream_outbox.storage.operating.filters import Count, DeadLetterFilter, MessageFilter
from faststream_outbox.storage.operating.registry import NodeOverview
from faststream_outbox.storage.ordering.states import KeyState, KeyStateName
from faststream_outbox.storage.queue_stats import QueueCounts
from faststream_outbox.storage.rows import OutboxRow

T = TypeVar("T")

# Rows of which table.
Kind = Literal["messages", "dead_letters"]

# A page examines so many rows; a search that has not found enough by then stops, and goes on with the next page.
MOST_EXAMINED: Final = 10_000
# So many keys are visited for a page, each by a probe of the index.
MOST_KEYS_VISITED: Final = 2_000
# Counting what waits behind each key of a page stops here.
MOST_WAITING: Final = 1_000
# Rows that are read together have at most so many bytes, and one row more: a page of large payloads is a short one.
_PAGE_BYTES: Final = 8 * 2**20
# `stats()` counts further than a person reads, because gauges and alerts are made of it.
STATS_CAP: Final = 100_000

# Where a list goes on: texts and numbers that JSON can hold.
Position = tuple[str | int, ...]

Route = Literal["id", "timer", "key", "queue"]


@dataclass(slots=True)
class DeadLetterRow:
    """A row of the dead-letter table. Times are numbers, and headers are text, as in `OutboxRow`."""

    id: int
    original_id: int
    queue: str
    entity_key: str | None
    payload: bytes
    headers_json: str | None
    timer_id: str | None
    attempts_count: int
    deliveries_count: int
    created_epoch: float
    first_attempt_epoch: float | None
    last_attempt_epoch: float | None
    failed_epoch: float
    failure_reason: str
    last_exception: str | None


class Head(NamedTuple):
    """The first row of a key: its id and its state."""

    id: int
    state: KeyStateName | Literal["ready"]


@dataclass(frozen=True, slots=True)
class Search(Generic[T]):
    """What one page of a search found, and where the next one begins; `position` is None at the end.

    `complete` is False if the search stopped because it had examined `MOST_EXAMINED` rows. `now` is the time of the
    database. `heads` has the heads before the messages that are found, by the ids of these.
    """

    items: list[T]
    position: Position | None = None
    complete: bool = True
    now: float = 0.0
    heads: Mapping[int, Head] = field(default_factory=dict)


def fitting(ids: Sequence[int], sizes: Mapping[int, int]) -> int:
    """Return how many rows, from the first on, to read together: at least one; `sizes` are the bytes of each."""
    total = 0
    for number, each in enumerate(ids, start=1):
        total += sizes.get(each, 0)
        if total >= _PAGE_BYTES:
            return number
    return len(ids)


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Dead letters of one queue with the same reason and type of exception; times are epoch seconds."""

    queue: str
    reason: str
    exception_type: str | None
    count: Count
    first_failed_epoch: float
    last_failed_epoch: float
    example_id: int


def route_of(where: MessageFilter, *, timers: bool = False) -> Route:
    """Return by which index a search goes, which is also the order of what it finds.

    - `"timer"`: by queue and timer.
    - `"key"`: by queue, and the messages of the key in their order.
    - `"queue"`: by queue; in each first messages without a key by when they are due, then the others by key.
    - `"id"`: by id.
    """
    if timers or where.timer_id is not None:
        return "timer"
    if where.key is not None:
        return "key"
    return "queue" if where.queue is not None or where.state is not None or where.node is not None else "id"


class StoreReads(ABC):
    """What operators read, on the synchronous session of a transaction; `Store.run` calls it.

    Example:
        found = await store.run(session, store.admin.search_messages, MessageFilter(queue="orders"), None, 100)

    """

    @abstractmethod
    def begin_read(self, session: Any) -> None:
        """Make a transaction of our own read-only, and its plans independent of the server's settings."""

    @abstractmethod
    def search_messages(
        self, session: Any, where: MessageFilter, after: Position | None, limit: int, *, timers: bool = False
    ) -> Search[OutboxRow]:
        """Return rows that match, in the order of `route_of`; with `timers` only rows that are timers."""

    @abstractmethod
    def find_messages(self, session: Any, correlation_id: str, limit: int) -> Search[OutboxRow]:
        """Search the oldest and the newest rows for a correlation id; `complete` says that these are all rows."""

    @abstractmethod
    def new_ids(self, session: Any, queue: str | None, after_id: int | None) -> tuple[list[int], int]:
        """Return the ids of rows after an id, and the highest id that was examined; without an id, of the newest."""

    @abstractmethod
    def count_fitting(self, session: Any, kind: Kind, ids: Sequence[int]) -> int:
        """Return how many of these rows, from the first on, to read together, as `fitting` says."""

    @abstractmethod
    def read_messages(self, session: Any, ids: Sequence[int]) -> Search[OutboxRow]:
        """Return the rows with these ids in this order, and the heads before them; those that are gone are left out."""

    @abstractmethod
    def read_dead_letter(self, session: Any, letter_id: int) -> DeadLetterRow | None:
        """Return one row of the dead-letter table; None if there is none."""

    @abstractmethod
    def search_dead_letters(
        self, session: Any, where: DeadLetterFilter, after: Position | None, limit: int
    ) -> Search[DeadLetterRow]:
        """Return dead letters that match, the newest first."""

    @abstractmethod
    def group_dead_letters(self, session: Any) -> list[LetterGroup]:
        """Group the newest `COUNT_CAP` dead letters of each queue."""

    @abstractmethod
    def count_queues(self, session: Any, queue: str | None = None) -> list[QueueCounts]:
        """Count the rows of every queue, or of one, up to `COUNT_CAP`; a queue without rows is left out."""

    def count_traffic(self, session: Any) -> tuple[int, int] | None:
        """Return how many rows were ever inserted and deleted, as the server counts them; None if nothing counts."""
        del session
        return None

    @abstractmethod
    def search_keys(
        self, session: Any, queue: str | None, states: Sequence[str], after: Position | None, limit: int
    ) -> Search[KeyState]:
        """Describe keys whose heads are in these states, by queue and key; visits `MOST_KEYS_VISITED` heads."""

    @abstractmethod
    def count_key(self, session: Any, queue: str, key: str) -> Count:
        """Count the rows of a key, up to `COUNT_CAP`."""

    @abstractmethod
    def read_nodes(self, session: Any) -> list[NodeOverview]:
        """Return the nodes that are alive, written down, or hold rows."""

    @abstractmethod
    def find_node(self, session: Any, name: str) -> NodeOverview:
        """Return one node, without what it holds; it is dead if nothing is known of it."""

    @abstractmethod
    def count_serving(self, session: Any) -> Mapping[str, int] | None:
        """Return how many living nodes read each queue; None if there is no table of nodes that can be read."""
