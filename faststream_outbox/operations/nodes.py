"""Nodes: which processes run, what they read and what they hold."""

from faststream_outbox.operations.base import OperationsBase
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.operating.registry import NodeOverview


class NodeOperations(OperationsBase):
    """The operations on nodes."""

    async def nodes(self, *, session: SessionOrConnection | None = None) -> list[NodeOverview]:
        """Return the processes that are alive, written down, or hold messages; the living first.

        Whether a process is alive is known by its lock, which ends with it. Without the table of nodes, and for
        processes that may not write it, the name of their connection says host and process, and nothing says which
        queues they read: they may belong to another outbox of the same database. Processes behind a pooler have no
        lock, and are not listed.

        Args:
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            for node in await operations.nodes():
                print(node.name, node.process, node.queues, node.in_hand, node.alive)

        """
        return await self._read(session, self._store.admin.read_nodes)
