"""What a round of the soak is made of, as the processes are told it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.storage import PostgresStore, make_dlq_table, make_outbox_table, make_shards_table

if TYPE_CHECKING:
    from tests.soak.checker import FinalState, Violation
    from tests.soak.process import SoakProcess
    from tests.soak.row_histories import RowHistories

METADATA = MetaData()
OUTBOX = make_outbox_table(METADATA)
DLQ = make_dlq_table(METADATA)
SHARDS = make_shards_table(METADATA)
QUEUES = ("orders", "mails", "timers")


def make_store(engine: AsyncEngine) -> PostgresStore:
    """Make the store under test."""
    return PostgresStore(engine, OUTBOX, dlq_table=DLQ)


def make_worker(settings: "Settings", name: str) -> "SoakProcess":
    """Make a consumer that does what it should."""
    from tests.soak.worker import Worker  # noqa: PLC0415 - the worker is told its settings, so it imports them

    return Worker(settings, name)


def make_producer(settings: "Settings", name: str) -> "SoakProcess":
    """Make a producer."""
    from tests.soak.producer import Producer  # noqa: PLC0415 - as above

    return Producer(settings, name)


@dataclass(frozen=True)
class FaultRates:
    """How often a fault strikes, and how the kinds share it; a weight of zero leaves a kind out."""

    every_seconds: float = 0.6
    kill: int = 4
    terminate: int = 4
    pause: int = 3
    restart: int = 0
    # Cuts the listening connection of a process again and again, for longer than others wait for its lock.
    isolate: int = 0
    # Of the server that rows are relayed to, if they are.
    outage: int = 0


@dataclass(frozen=True)
class Settings:
    """One round. A broken variant brings a store or a worker of its own, by a function that processes can import."""

    url: str
    directory: Path
    seed: int
    # For how long processes go on if nobody stops them: nothing outlives a soak that was itself killed.
    until: float
    workers: int = 4
    producers: int = 2
    # Short, so that leases are lost and taken over many times in seconds.
    lease_seconds: float = 0.8
    # Rows that one producer tries to publish in a second.
    rate: float = 120.0
    # The share of handlers that take about as long as the lease, or longer.
    slow: float = 0.2
    faults: FaultRates = field(default_factory=FaultRates)
    # For how long nothing may leave the table while it is emptied: the slowest way is a lease that runs out (that of a
    # shard, maybe), a retry, and every suspect claimed alone.
    drain_seconds: float = 20.0
    store: Callable[[AsyncEngine], PostgresStore] = make_store
    worker: "Callable[[Settings, str], SoakProcess]" = make_worker
    producer: "Callable[[Settings, str], SoakProcess]" = make_producer
    # Statements that change the tables, for claimers that need others.
    prepare: tuple[str, ...] = ()

    def check(self, histories: "RowHistories", final: "FinalState", slack: float) -> "list[Violation]":
        """Check the history of a round."""
        from tests.soak.checker import check  # noqa: PLC0415 - as above

        return check(histories, final, slack=slack)
