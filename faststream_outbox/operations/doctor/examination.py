"""What the checks of the doctor share: the tables, the limits, and questions that can neither hang nor write."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.storage.nodes import node_name
from faststream_outbox.storage.postgres.drivers import Records, run_on
from faststream_outbox.storage.postgres.reads.nodes import PostgresNodeReads
from faststream_outbox.storage.postgres.statements.examine.rows import RowQuestions, read_holders, read_pauses
from faststream_outbox.storage.postgres.statements.examine.server import (
    BEGIN_QUESTION,
    SERVER,
    TABLES,
    WANTED,
)
from faststream_outbox.storage.postgres.statements.nodes import LIVING_NODES
from faststream_outbox.storage.postgres.statements.statement import Statement
from faststream_outbox.storage.schema.grants import RoleKind
from faststream_outbox.storage.schema.tables import quoted_name

T = TypeVar("T")

# How long one check may take, and one of its questions. A question takes some milliseconds, on a busy server a second.
CHECK_SECONDS: Final = 10.0
_QUESTION_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class DoctorLimits:
    """From where on the doctor names something. The defaults suit most; each is justified beside it.

    Attributes:
        snapshot_seconds: A transaction that is open for longer keeps dead rows. Claims become slower after minutes.
        snapshot_transactions: The same for what has no time: a slot, a standby, a session of another role.
        idle_slot_bytes: How much of the write-ahead log a slot that nobody reads may keep.
        dead_rows: More dead rows than this, without a vacuum for `vacuum_seconds`, are too many. Autovacuum comes
            after 2,000.
        vacuum_seconds: How long a table with so many dead rows may be without a vacuum. Autovacuum looks every minute.
        counted_updates: How many updates must have been counted before the share of heap-only ones says anything.
        hot_share: The smallest share of heap-only updates. Claims are heap-only, retries are not, so half is normal.
        clock_seconds: How far the clocks of this process and of the server may be apart.
        connections_share: The largest share of the server's connections that may be in use.
        notify_queue_share: The largest share of the server's queue of notifications that may be in use.
        ids_share: The smallest share of ids that must be left.
        waiting_seconds: How long due rows may wait without a process that claims them; polls are 10 seconds apart.
        backlog_seconds: How long due rows may wait although processes claim rows of their queue.
        handling_seconds: How long a process may have one message in hand.
        retrying_seconds: For how long a key may fail again and again.
        dead_letters: How many new dead letters of a queue, within `dead_letter_seconds`, are too many.
        dead_letter_seconds: Over how long new dead letters are counted.
        pause_seconds: How long a queue may be paused without an end.

    Example:
        findings = await operations.doctor(limits=DoctorLimits(snapshot_seconds=60))

    """

    snapshot_seconds: float = 300.0
    snapshot_transactions: int = 100_000
    idle_slot_bytes: int = 2**30
    dead_rows: int = 100_000
    vacuum_seconds: float = 600.0
    counted_updates: int = 10_000
    hot_share: float = 0.4
    clock_seconds: float = 2.0
    connections_share: float = 0.9
    notify_queue_share: float = 0.5
    ids_share: float = 0.1
    waiting_seconds: float = 60.0
    backlog_seconds: float = 600.0
    handling_seconds: float = 3600.0
    retrying_seconds: float = 600.0
    dead_letters: int = 10
    dead_letter_seconds: float = 3600.0
    pause_seconds: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Server:
    """What the server says of itself, in the order of the statement `SERVER`."""

    version_number: int
    version: str
    in_recovery: bool
    read_only: bool
    read_only_source: str
    role: str
    database: str
    sees_sessions: bool
    autovacuum: bool
    counts: bool
    connections: int
    connected: int
    notify_queue_share: float
    time: float


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table that exists; `name` is quoted, with the schema in which it was found."""

    table: Table
    name: str
    oid: int
    schema_oid: int
    usable: bool
    readable: bool


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of an outbox, as far as they were given."""

    outbox: Table
    dlq: Table | None = None
    shards: Table | None = None
    control: Table | None = None
    audit: Table | None = None
    nodes: Table | None = None
    inbox: Table | None = None

    def given(self) -> Iterator[tuple[str, Table]]:
        """Yield the names and the tables that were given."""
        for name in self.__slots__:
            if (table := getattr(self, name)) is not None:
                yield name, table

    def as_dict(self) -> dict[str, Table]:
        """Return the tables that were given, by their names."""
        return dict(self.given())


@dataclass(frozen=True, slots=True)
class Pool:
    """The connections that a broker needs of its engine's pool, and how many the pool gives; None without a limit."""

    needed: int
    given: int | None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of a queue, or heads of keys, in one state and held by one node or none.

    The states are those of rows; of heads also `HELD` (an operator stopped the key, for one of `reasons`) and
    `DELAYING` (it is delayed, and rows behind it are due, since `began`).
    """

    queue: str
    state: str
    node: str | None
    count: int
    due: float
    began: float
    acquired: float | None
    keys: list[str] | None
    reasons: list[str] | None
    cut: bool


@dataclass(frozen=True, slots=True)
class Paused:
    """A queue that is paused; `until` is None if nobody set an end."""

    queue: str
    until: float | None
    since: float
    by: str
    reason: str


@dataclass(slots=True)
class Examination:
    """One visit of the doctor: what was asked for, and the answers that several checks need."""

    engine: AsyncEngine
    tables: Tables
    kind: RoleKind
    limits: DoctorLimits
    clock: Callable[[], float] = time.time
    # Given by a broker.
    pool: Pool | None = None
    # Found by the first questions.
    found: dict[str, FoundTable] = field(default_factory=dict)
    _server: Server | None = None
    _groups: dict[str, list[RowGroup]] = field(default_factory=dict)
    # Set by the check of poolers: what needs a session of its own cannot be checked then.
    pooled: bool = False

    @property
    def server(self) -> Server:
        """What the server said of itself; the first check has asked."""
        if self._server is None:
            raise RuntimeError("The server was not asked yet.")
        return self._server

    async def begin(self) -> None:
        """Ask what all checks need to know; raise if the server cannot be reached."""
        [record] = await self.fetch(SERVER)
        self._server = Server(*record)
        given = list(self.tables.given())
        asked = WANTED.fill([(table.name, table.schema) for _, table in given])
        for number, oid, schema_oid, schema, usable, readable in await self.fetch(TABLES, **asked):
            name, table = given[number - 1]
            self.found[name] = FoundTable(table, quoted_name(table.name, schema), oid, schema_oid, usable, readable)

    def reads(self, name: str) -> bool:
        """Return whether a table was given, exists, and can be read by this role."""
        found = self.found.get(name)
        return found is not None and found.usable and found.readable

    async def fetch(self, statement: Statement, /, **values: Any) -> Records:
        """Ask one question, in a transaction that cannot write, wait for a lock or take long."""
        return await self.run(run_on, statement, **values)

    async def run(self, function: Callable[..., T], /, *arguments: Any, **values: Any) -> T:
        """Call a function with a synchronous connection, in such a transaction."""
        async with self.engine.connect() as connection:
            try:
                limit = f"{_QUESTION_SECONDS:g}s"
                await connection.run_sync(run_on, BEGIN_QUESTION, limit=limit)

                def call(sync: Connection) -> T:
                    return function(sync, *arguments, **values)

                result: T = await connection.run_sync(call)
                await connection.rollback()
            except BaseException:
                # A statement may still run on it: the pool must not reuse it.
                await connection.invalidate()
                raise
        return result

    async def living_nodes(self) -> frozenset[str]:
        """Return the names of the nodes whose locks are there."""
        return frozenset(node_name(number) for number, *_ in await self.fetch(LIVING_NODES))

    async def pauses(self) -> list[Paused]:
        """Return the queues that are paused."""
        if not self.reads("control"):
            return []
        return [Paused(*record) for record in await self.fetch(read_pauses(self.found["control"].table))]

    async def holders(self, queue: str, keys: Sequence[str]) -> dict[str, str]:
        """Return who stopped these keys, as far as the audit says."""
        if not self.reads("audit"):
            return {}
        latest_first = await self.fetch(read_holders(self.found["audit"].table), queue=queue, keys=list(keys))
        return dict(reversed([(key, by) for key, by in latest_first]))

    async def describe_node(self, name: str) -> str:
        """Return the name of a node and, if the table of nodes still says so, where it ran."""
        process = (await self.run(self._node_reads().find, name)).process
        return f"{name} ({process})" if process else name

    def _node_reads(self) -> PostgresNodeReads:
        table = self.found["nodes"].table if self.reads("nodes") else None
        return PostgresNodeReads(run_on, self.tables.outbox, table)

    async def served_queues(self) -> frozenset[str]:
        """Return the queues that living nodes read, as far as the table of nodes says."""
        return frozenset(await self.run(self._node_reads().count_serving) or ())

    async def plain_rows(self) -> list[RowGroup]:
        """Return the first due rows without a key of each queue, in groups."""
        return await self._ask_rows("plain")

    async def heads(self) -> list[RowGroup]:
        """Return the first rows of keys, in groups."""
        return await self._ask_rows("heads")

    async def _ask_rows(self, kind: str) -> list[RowGroup]:
        if not self.reads("outbox"):
            return []
        if kind not in self._groups:
            questions = self.questions()
            statement = questions.heads if kind == "heads" else questions.plain
            self._groups[kind] = [RowGroup(*record) for record in await self.fetch(statement)]
        return self._groups[kind]

    def forget_rows(self) -> None:
        """Ask for rows again when they are needed next."""
        self._groups.clear()

    def questions(self) -> RowQuestions:
        """Return the questions about rows, to tables that are found as other statements find them."""
        return RowQuestions(self.tables.outbox, self.tables.dlq if self.reads("dlq") else None)


def private_engine(engine: AsyncEngine) -> AsyncEngine:
    """Return an engine that connects as this one does, from a pool of its own: the given one may be exhausted."""
    sync = engine.sync_engine
    return AsyncEngine(Engine(sync.pool.recreate(), sync.dialect, sync.url, hide_parameters=True))
