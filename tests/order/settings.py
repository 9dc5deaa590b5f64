"""What an ordered round is made of: the strategy, the keys, and what is spoiled in a variant."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox import AdvisoryLocks, HashShards, HeadLease, OutboxBroker
from faststream_outbox.storage import PostgresStore
from faststream_outbox.storage.ordering import Ordering
from tests.order.rules import check_with_keys
from tests.soak.checker import FinalState, Violation
from tests.soak.row_histories import RowHistories
from tests.soak.settings import DLQ, OUTBOX, SHARDS, FaultRates, Settings

if TYPE_CHECKING:
    from tests.soak.process import SoakProcess

QUEUE: Final = "orders"
# On a machine that has other things to do, and far less than a process is isolated.
START_SLACK: Final = 2.0
ORDERINGS: Final[Mapping[str, Ordering]] = {
    "HeadLease": HeadLease(),
    "AdvisoryLocks": AdvisoryLocks(),
    "HashShards": HashShards(count=16),
}
# All of them at once, as while a deployment changes from one to another.
MIXED: Final = "mixed"
STRATEGIES: Final = (*ORDERINGS, MIXED)

# Breaks something in a broker's store.
Spoil = Callable[[PostgresStore], None]


def nothing(store: PostgresStore) -> None:
    """Break nothing."""


def make_worker(settings: Settings, name: str) -> "SoakProcess":
    """Make a process with a broker that consumes."""
    from tests.order.worker import OrderWorker  # noqa: PLC0415 - the worker is told its settings, so it imports them

    return OrderWorker(settings, name)


def make_producer(settings: Settings, name: str) -> "SoakProcess":
    """Make a process with a broker that publishes."""
    from tests.order.producer import OrderProducer  # noqa: PLC0415 - as above

    return OrderProducer(settings, name)


@dataclass(frozen=True)
class OrderSettings(Settings):
    """One round with keys."""

    strategy: str = "HeadLease"
    # A few that are busy all the time, and many that come up now and then.
    hot_keys: int = 8
    cold_keys: int = 200
    # The share of rows without a key, and of those that are due a little later.
    unkeyed: float = 0.15
    delayed: float = 0.05
    # How late transactions commit, against rows without a key: whoever publishes for the same key waits for them.
    lingering: float = 0.3
    # What most handlers take at most; the share that takes longer than a lease, and how many of those block the event
    # loop meanwhile.
    handler_seconds: float = 0.004
    slow: float = 0.01
    blocks: float = 0.4
    # The share of handlers that fail; a fifth of them for good.
    fails: float = 0.04
    # How often each producer replays what is dead, in seconds; 0 if never.
    replay_every: float = 0.0
    # The handlers that processes have, by turns.
    handlers: tuple[str, ...] = ("one", "many", "one_with_session", "many_with_session")
    # How long after its start a handler's first line may be written; infinity where starts are not checked.
    start_slack: float = math.inf
    spoil: Spoil = nothing
    worker: "Callable[[Settings, str], SoakProcess]" = make_worker
    producer: "Callable[[Settings, str], SoakProcess]" = make_producer

    def check(self, histories: RowHistories, final: FinalState, slack: float) -> list[Violation]:
        """Check rows, and keys."""
        return check_with_keys(histories, final, slack, self.start_slack)

    def broker(self, engine: AsyncEngine, **options: Any) -> OutboxBroker:
        """Make a broker with what is to be spoiled spoiled."""
        broker = OutboxBroker(engine, outbox_table=OUTBOX, dlq_table=DLQ, shards_table=SHARDS, logger=None, **options)
        store = broker.client.store
        assert isinstance(store, PostgresStore)
        self.spoil(store)
        return broker

    def ordering(self, number: int) -> Ordering:
        """The strategy of a process."""
        orderings = list(ORDERINGS.values())
        return orderings[number % len(orderings)] if self.strategy == MIXED else ORDERINGS[self.strategy]


def with_long_leases(settings: OrderSettings, seconds: float) -> OrderSettings:
    """Return a round in which rows of dead processes must be recovered long before their leases end.

    Processes are killed, and lose the connection that holds their lock. No handler outlasts a lease, and none waits for
    a session before its first line. A row that was claimed without a lock, or by a claim whose answer was lost, waits
    for its lease: so the table may take as long to be emptied.
    """
    faults = FaultRates(every_seconds=1.0, kill=4, terminate=3, pause=0, restart=settings.faults.restart, isolate=2)
    return replace(
        settings,
        lease_seconds=seconds,
        slow=0.0,
        handlers=("one", "many"),
        start_slack=START_SLACK,
        faults=faults,
        drain_seconds=1.5 * seconds,
    )
