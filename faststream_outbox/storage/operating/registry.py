"""The contract of the table of nodes, which is for people: leases and recovery do not depend on it."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from faststream_outbox.storage.operating.filters import Count


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """What a process writes about itself; `age` says how many seconds ago it started."""

    name: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    strategy: str
    age: float


@dataclass(frozen=True, slots=True)
class NodeOverview:
    """One node: a broker or a relay in one process.

    Attributes:
        name: Its id, as in `Message.holder`.
        alive: Whether its lock is there; None if your role may not read `pg_locks`.
        host: The name of its host; None if nobody knows it any more.
        pid: The number of its process on that host.
        version: The version of this package that it runs; None without the table of nodes.
        started_at: When it started; without the table of nodes, since when it is connected.
        queues: The queues that it reads; None without the table of nodes.
        ordering: How it shares keys with other nodes, such as `"HeadLease"`; None without the table of nodes.
        in_hand: How many messages it holds, of a key only the first one. The first 10,000 due messages of each queue
            and the first 10,000 keys are looked at; the number is capped if there are more.

    """

    name: str
    alive: bool | None
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    started_at: datetime | None = None
    queues: tuple[str, ...] | None = None
    ordering: str | None = None
    in_hand: Count = Count(0)  # noqa: RUF009 - a frozen value

    @property
    def process(self) -> str | None:
        """Where it runs: `"host:pid"`; None if nobody knows it any more."""
        return None if self.host is None else f"{self.host}:{self.pid}"


class NodeRegistry(ABC):
    """Writes and removes the rows of nodes, each in a transaction of its own."""

    @abstractmethod
    async def write(self, entry: NodeEntry) -> None:
        """Write the row of a node whose lock is there, or write it anew."""

    @abstractmethod
    async def remove(self, name: str) -> None:
        """Remove the row of a node that stops."""

    @abstractmethod
    async def remove_dead(self, alive: Collection[str]) -> None:
        """Remove the rows of nodes that are not among these, and whose locks are gone."""
