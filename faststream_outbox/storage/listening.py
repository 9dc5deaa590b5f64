"""The contract of a listening connection: it receives notifications, and holds the lock of this node."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable

from faststream_outbox.storage.nodes import Look, Node


class Listening(ABC):
    """Receives the notifications of all publishers, and can test whether it still does."""

    @abstractmethod
    async def notify(self, queues: Iterable[str]) -> None:
        """Notify all listeners, as the store does, but on the listening connection."""

    @abstractmethod
    async def unserved(self, known: Collection[str]) -> dict[str, int]:
        """Do what the method of a lane does, on the listening connection."""

    @abstractmethod
    async def look(self, node: Node) -> Look | None:
        """Return which nodes are alive; hold the lock of this node from the first look on.

        None if the connection has no session of its own, as behind a pooler.
        """

    @abstractmethod
    async def wait_lost(self) -> None:
        """Return when the connection is known to be lost; one that dies silently is found by `test` only."""

    @abstractmethod
    async def test(self) -> None:
        """Send a notification the way publishers do, and return when it was received.

        It may wait without end: the caller sets the limit.
        """

    @abstractmethod
    def can_test(self) -> bool:
        """Return whether a failed test would mean anything: not if it needs a connection and none is free."""
