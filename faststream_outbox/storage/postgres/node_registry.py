"""Writes and removes the rows of the table of nodes, on connections from the pool."""

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from faststream_outbox.storage.operating.registry import NodeEntry, NodeRegistry
from faststream_outbox.storage.postgres.drivers import run_on
from faststream_outbox.storage.postgres.statements.nodes import NodeTableStatements


class PostgresNodeRegistry(NodeRegistry):
    """The rows of one table of nodes. A consumer may insert and delete them, and needs no right to update them."""

    def __init__(self, begin: Callable[[], AbstractAsyncContextManager[AsyncConnection]], nodes: Table) -> None:
        self._begin = begin
        self._statements = NodeTableStatements(nodes)

    async def write(self, entry: NodeEntry) -> None:
        """Write the row of a node whose lock is there, or write it anew."""
        values = {
            "name": entry.name,
            "host": entry.host,
            "pid": entry.pid,
            "version": entry.version,
            "age": entry.age,
            "queues": list(entry.queues),
            "strategy": entry.strategy,
        }
        async with self._begin() as connection:
            await connection.run_sync(run_on, self._statements.remove, name=entry.name)
            await connection.run_sync(run_on, self._statements.write, **values)

    async def remove(self, name: str) -> None:
        """Remove the row of a node that stops."""
        async with self._begin() as connection:
            await connection.run_sync(run_on, self._statements.remove, name=name)

    async def remove_dead(self, alive: Collection[str]) -> None:
        """Remove the rows of nodes that are not among these, and whose locks are gone."""
        async with self._begin() as connection:
            await connection.run_sync(run_on, self._statements.remove_dead, alive=list(alive))
