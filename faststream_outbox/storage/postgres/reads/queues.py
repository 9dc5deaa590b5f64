"""Count the rows of queues, and describe keys that are blocked, and nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table

from faststream_outbox.storage.operating.filters import COUNT_CAP
from faststream_outbox.storage.operating.reads import MOST_KEYS_VISITED, MOST_WAITING, Position, Search
from faststream_outbox.storage.operating.registry import NodeOverview
from faststream_outbox.storage.ordering.states import KeyState
from faststream_outbox.storage.postgres.reads.dead_letters import PostgresLetterReads
from faststream_outbox.storage.postgres.reads.execute import Execute
from faststream_outbox.storage.postgres.reads.nodes import PostgresNodeReads
from faststream_outbox.storage.postgres.statements.queues import QueueStatements
from faststream_outbox.storage.queue_stats import QueueCounts
from faststream_outbox.storage.rows import OutboxRow


class PostgresReads(PostgresLetterReads):
    """All that operators read, by statements on the session that is given."""

    def __init__(self, execute: Execute, outbox: Table, dlq: Table | None, nodes: Table | None = None) -> None:
        super().__init__(execute, outbox, dlq)
        self._queue_statements = QueueStatements(outbox, dlq)
        self._nodes = PostgresNodeReads(execute, outbox, nodes)

    def count_queues(self, session: Any, queue: str | None = None) -> list[QueueCounts]:
        """Count the rows of every queue, or of one, up to `COUNT_CAP`."""
        if queue is None:
            records = self._execute(session, self._queue_statements.counts(COUNT_CAP))
        else:
            records = self._execute(session, self._queue_statements.counts_of_one(COUNT_CAP), queue=queue)
        return [QueueCounts.of(*record) for record in records]

    def count_traffic(self, session: Any) -> tuple[int, int] | None:
        """Return how many rows were ever inserted and deleted, as the server counts them."""
        found = next(iter(self._execute(session, self._queue_statements.traffic)), None)
        return None if found is None else (int(found[0]), int(found[1]))

    def search_keys(
        self, session: Any, queue: str | None, states: Sequence[str], after: Position | None, limit: int
    ) -> Search[KeyState]:
        """Describe keys whose heads are in these states, by queue and key; visits `MOST_KEYS_VISITED` heads."""
        after_queue, after_key = (queue or "", "") if after is None else after
        asked = {"queue": queue, "states": list(states), "after_queue": after_queue, "after_key": after_key}
        visited, last, found, now = 0, after, list[KeyState](), 0.0
        records = self._execute(session, self._queue_statements.keys, **asked, limit=limit)
        for visited, its_queue, key, wanted, now, waiting, *head in records:  # noqa: B007 - the last one counts
            last = (its_queue, key)
            if wanted:
                row, capped = OutboxRow(*head), waiting > MOST_WAITING
                found.append(KeyState.of(row, waiting=min(waiting, MOST_WAITING), now=now, waiting_capped=capped))
        if len(found) >= limit:
            return Search(found, last, now=now)
        ended = visited < MOST_KEYS_VISITED
        return Search(found, None if ended else last, ended, now)

    def read_nodes(self, session: Any) -> list[NodeOverview]:
        """Return the nodes that are alive, written down, or hold rows."""
        return self._nodes.read(session)

    def find_node(self, session: Any, name: str) -> NodeOverview:
        """Return one node, without what it holds; it is dead if nothing is known of it."""
        return self._nodes.find(session, name)

    def count_serving(self, session: Any) -> Mapping[str, int] | None:
        """Return how many living nodes read each queue; None if there is no table of nodes that can be read."""
        return self._nodes.count_serving(session)
