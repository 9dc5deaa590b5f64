"""Keeps the table of nodes true: writes the row of this process, and removes those of processes that died."""

import asyncio
import logging
import os
import socket
import time
from contextlib import suppress
from typing import Final

from faststream_outbox.__about__ import __version__
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage.errors import sqlstate
from faststream_outbox.storage.nodes import NO_DEATHS, Deaths, Nodes
from faststream_outbox.storage.operating.registry import NodeEntry, NodeRegistry

# No right to write, no such table, no such column, a server that takes no writes: to try again would not help.
_REFUSED: Final = frozenset({"42501", "42P01", "42703", "25006"})
_WRITE_LIMIT: Final = 5.0
# A stop does not wait for long: the other nodes remove a row that is left behind.
_REMOVE_LIMIT: Final = 1.0


class NodeRegistrar(Loop):
    """Writes when something has changed, on connections from the pool: liveness does not depend on this table.

    The row is written while the lock of the node is held, and anew after the lock was lost: others may have removed it.
    """

    failure_event = "node_not_written"
    task = "Writing the table of nodes"

    def __init__(self, nodes: Nodes, registry: NodeRegistry, monitor: Monitor) -> None:
        super().__init__(monitor)
        self._nodes = nodes
        self._registry = registry
        self._began = time.monotonic()
        self._due = asyncio.Event()
        # What was written last: the node, its queues and its strategies.
        self._written: tuple[str, tuple[str, ...], str] | None = None
        # The deaths whose rows are to be removed, and how many were found until then.
        self._deaths = NO_DEATHS
        self._deaths_seen = 0
        self._refused = False
        self._tried = False

    def note_look(self) -> None:
        """Write soon if something has changed; the listening connection has looked at the locks."""
        watch = self._nodes.watch
        if watch.found != self._deaths_seen and watch.deaths is not NO_DEATHS:
            self._deaths, self._deaths_seen = watch.deaths, watch.found
        if not self._refused and (self._deaths is not NO_DEATHS or self._wanted() not in (None, self._written)):
            self._due.set()

    def note_lost(self) -> None:
        """Write the row anew after the next look: without the lock, others remove it."""
        self._written = None

    def _wanted(self) -> tuple[str, tuple[str, ...], str] | None:
        """Return what the row should say; None while there is no lock or nothing is read."""
        own, served = self._nodes.own, self._nodes.served
        return (own.name, served.queues, served.orderings) if own.locked and served.queues else None

    async def step(self) -> None:
        """Wait for a change, and write it."""
        await self._due.wait()
        self._due.clear()
        try:
            await within(_WRITE_LIMIT, self._write())
        except Exception as error:
            if sqlstate(error) not in _REFUSED:
                raise
            self._refused = True
            message = (
                f"This process cannot write the table of nodes ({describe(error)}). Messages are handled without it; "
                "`faststream-outbox schema grants --as consumer` prints the rights that it needs."
            )
            self._monitor.report(self.failure_event, message, level=logging.WARNING)

    async def _write(self) -> None:
        wanted = self._wanted()
        if wanted is not None and wanted != self._written:
            name, queues, orderings = wanted
            self._tried = True
            age = time.monotonic() - self._began
            entry = NodeEntry(name, socket.gethostname(), os.getpid(), __version__, queues, orderings, age)
            await self._registry.write(entry)
            self._written = wanted
        if self._deaths is not NO_DEATHS:
            deaths: Deaths = self._deaths
            await self._registry.remove_dead(deaths.alive)
            if self._deaths is deaths:
                self._deaths = NO_DEATHS

    async def stop(self) -> None:
        """Stop, and remove the row of this process."""
        await super().stop()
        if self._tried and not self._refused and self._nodes.own.locked:
            with suppress(Exception):  # the other nodes remove it
                await within(_REMOVE_LIMIT, self._registry.remove(self._nodes.own.name))
