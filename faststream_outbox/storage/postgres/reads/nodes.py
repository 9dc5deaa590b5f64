"""Read which nodes there are: by their locks, their connections, the table of nodes, and the rows that they hold."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Table

from faststream_outbox.storage.nodes import node_name
from faststream_outbox.storage.operating.filters import COUNT_CAP, Count
from faststream_outbox.storage.operating.registry import NodeOverview
from faststream_outbox.storage.postgres.reads.execute import Execute
from faststream_outbox.storage.postgres.statements.nodes import (
    LIVING_NODES,
    READABLE,
    NodeTableStatements,
    count_held,
)
from faststream_outbox.storage.rows import to_datetime

# The end of the name of a listening connection: the node, its host and its process.
_PROCESS: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4} (?P<host>.+):(?P<pid>\d+)$")


class PostgresNodeReads:
    """Reads nodes by statements on the session that is given."""

    def __init__(self, execute: Execute, outbox: Table, nodes: Table | None) -> None:
        self._execute = execute
        self._count_held = count_held(outbox)
        self._table = None if nodes is None else NodeTableStatements(nodes)

    def read(self, session: Any) -> list[NodeOverview]:
        """Return the nodes that are alive, written down, or hold rows: the living first, by their processes."""
        records = self._execute(session, self._count_held)
        held = {name: Count(min(number, COUNT_CAP), capped=cut) for name, number, cut in records}
        # Asked after the rows: a node that holds one has taken its lock before.
        nodes = self._known(session, held)
        return sorted(nodes.values(), key=lambda node: (not node.alive, node.host or "", node.pid or 0, node.name))

    def find(self, session: Any, name: str) -> NodeOverview:
        """Return one node, without what it holds; it is dead if nothing is known of it."""
        return self._known(session, {name: Count(0)})[name]

    def _known(self, session: Any, held: Mapping[str, Count]) -> dict[str, NodeOverview]:
        """Return these nodes, those that are alive, and those that are written down."""
        locks, table = self._readable(session)
        living = self._living(session) if locks else {}
        registered = self._registered(session) if table else {}
        known = {}
        for name in living.keys() | registered.keys() | held.keys():
            host, pid, since = living.get(name, (None, None, None))
            written = registered.get(name, (host, pid, None, since, None, None))
            host, pid, version, since, queues, ordering = written
            known[name] = NodeOverview(
                name,
                name in living if locks else None,
                host,
                pid,
                version,
                None if since is None else to_datetime(since),
                None if queues is None else tuple(queues),
                ordering,
                held.get(name, Count(0)),
            )
        return known

    def count_serving(self, session: Any) -> Mapping[str, int] | None:
        """Return how many living nodes read each queue; None if there is no table of nodes that can be read."""
        if not all(self._readable(session)):
            return None
        living = self._living(session)
        rows = self._registered(session).items()
        return Counter(queue for name, (*_, queues, _) in rows if name in living for queue in set(queues))

    def _readable(self, session: Any) -> tuple[bool, bool]:
        """Return whether the locks, and the table of nodes, can be read by this role."""
        [[locks, table]] = self._execute(session, READABLE, table=None if self._table is None else self._table.table)
        return locks, table

    def _living(self, session: Any) -> dict[str, tuple[str | None, int | None, float | None]]:
        """Return host, process and time of connection of the nodes whose locks are there, by their names."""
        found = {}
        for number, connection, since in self._execute(session, LIVING_NODES):
            process = _PROCESS.search(connection or "")
            host, pid = (process["host"], int(process["pid"])) if process else (None, None)
            found[node_name(number)] = (host, pid, since)
        return found

    def _registered(self, session: Any) -> dict[str, tuple[Any, ...]]:
        """Return the rows of the table of nodes, by the names of the nodes."""
        records = () if self._table is None else self._execute(session, self._table.read)
        return {name: tuple(rest) for name, *rest in records}
