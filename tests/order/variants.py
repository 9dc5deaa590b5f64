"""What is broken on purpose, the rule that tells of it, and the round that brings it out soon."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from faststream_outbox.embedded import Database
from tests.order import broken_statements, faulty_claimers, first_designs
from tests.order.producer import MixedProducer
from tests.order.settings import START_SLACK, OrderSettings, Spoil
from tests.order.worker import BlockedWorker, StallingWorker
from tests.soak.checker import Kind
from tests.soak.process import SoakProcess
from tests.soak.settings import FaultRates, Settings

NO_FAULTS: Final = FaultRates(every_seconds=600.0)
# Few keys, so that much happens to each of them; a short lease, so that it runs out often.
PACE: Final[Mapping[str, Any]] = {
    "workers": 3,
    "lease_seconds": 0.3,
    "rate": 400.0,
    "lingering": 0.1,
    "hot_keys": 4,
    "cold_keys": 2,
    "unkeyed": 0.0,
    "slow": 0.0,
    "fails": 0.0,
    "delayed": 0.0,
    "drain_seconds": 0.5,
    "faults": NO_FAULTS,
}


@dataclass(frozen=True)
class Variant:
    """One fault."""

    name: str
    kind: Kind
    changes: Mapping[str, Any] = field(default_factory=dict)
    # How long a round is: what is broken shows only when some things meet in time.
    seconds: float = 9.0

    def settings(self, database: Database, seed_number: int) -> OrderSettings:
        """Make the round that brings it out."""
        url = database.url("asyncpg")
        return replace(OrderSettings(url, Path(), seed_number, until=0.0), **{**PACE, **self.changes})


def _ours(spoil: Spoil, kind: Kind, seconds: float = 9.0, **changes: Any) -> Variant:
    return Variant(spoil.__name__, kind, {"spoil": spoil, **changes}, seconds)


def _foreign(worker: Callable[[Settings, str], SoakProcess], kind: Kind, **changes: Any) -> Variant:
    return Variant(worker.__name__, kind, {"worker": worker, "prepare": first_designs.COLUMNS, **changes})


# Leases are lost when several rows wait to be settled under them.
_LOST: Final[Mapping[str, Any]] = {
    "worker": StallingWorker,
    "handlers": ("many",),
    "slow": 0.1,
    "handler_seconds": 0.01,
}
# Claimers wait for each other's locks, in a long row.
_ONE_STATEMENT: Final[Mapping[str, Any]] = {"hot_keys": 1, "cold_keys": 1, "handler_seconds": 0.02}
_LEASES: Final[Mapping[str, Any]] = {
    "prepare": faulty_claimers.LEASES,
    "lease_seconds": 0.15,
    "slow": 0.3,
    "rate": 400.0,
    "hot_keys": 2,
    "cold_keys": 1,
}

# Leases last for a minute, and processes lose the connection that holds their lock.
_ISOLATED: Final[Mapping[str, Any]] = {
    "lease_seconds": 60.0,
    "slow": 0.0,
    "drain_seconds": 30.0,
    "start_slack": START_SLACK,
    "handlers": ("one",),
    "handler_seconds": 0.3,
    "hot_keys": 30,
    "unkeyed": 0.5,
    "rate": 60.0,
    "faults": FaultRates(every_seconds=1.0, kill=0, terminate=0, pause=0, isolate=1),
}
# Processes lose their lock while their event loop is blocked, and find rows in hand when it runs again.
_BLOCKED: Final[Mapping[str, Any]] = {**_ISOLATED, "worker": BlockedWorker, "faults": NO_FAULTS}

# Much fails for good, and is replayed at once.
_REPLAYED: Final[Mapping[str, Any]] = {
    "fails": 0.3,
    "replay_every": 0.05,
    "handlers": ("one",),
    "handler_seconds": 0.01,
    "lease_seconds": 5.0,
    "drain_seconds": 20.0,
}
_IN_SQL: Final[Mapping[str, Any]] = {
    "prepare": broken_statements.functions_without_lock(),
    "producer": MixedProducer,
    "workers": 1,
    "lingering": 0.5,
    "hot_keys": 2,
    "cold_keys": 1,
}

# Answers of claims are lost, and leases last for a minute: without their rows back a round would not come to its end.
_ANSWERS: Final[Mapping[str, Any]] = {
    "lease_seconds": 60.0,
    "handlers": ("one",),
    "handler_seconds": 0.02,
    "drain_seconds": 20.0,
}

OURS: Final = [
    _ours(broken_statements.replayed_behind, "order", **_REPLAYED),
    _ours(broken_statements.replayed_while_in_flight, "exclusion", **_REPLAYED),
    _ours(broken_statements.head_updated, "order", 20.0, **_REPLAYED),
    _ours(broken_statements.no_grace, "exclusion", 30.0, **_BLOCKED),
    _ours(broken_statements.no_stop_of_starts, "exclusion", 30.0, **_BLOCKED),
    _ours(broken_statements.no_producer_lock, "order", workers=1, lingering=0.5, hot_keys=2, cold_keys=1),
    Variant("functions_without_lock", "order", _IN_SQL),
    _ours(broken_statements.head_by_time, "order", fails=0.15),
    _ours(broken_statements.fence_of_each_row, "order", **_LOST),
    _ours(broken_statements.claim_of_leased_heads, "exclusion"),
    _ours(broken_statements.give_back_of_all_that_is_leased, "exclusion", **_ANSWERS),
    _ours(broken_statements.gap_behind_the_head, "order", handler_seconds=0.02),
]
STRANGERS: Final = [
    _foreign(faulty_claimers.SeedAdvisoryLocks, "exclusion"),
    _foreign(faulty_claimers.SeedSkipLocked, "exclusion"),
    _foreign(faulty_claimers.SeedHashShards, "order", prepare=first_designs.SHARDS, fails=0.05),
    _foreign(faulty_claimers.SessionLocks, "exclusion", handler_seconds=0.05),
    _foreign(faulty_claimers.OneStatement, "order", **_ONE_STATEMENT),
    _foreign(faulty_claimers.ClockTimestamp, "order", **_LEASES),
]
# The same rounds, with nothing wrong.
SOUND: Final = [
    Variant("isolated", "exclusion", _ISOLATED, 30.0),
    Variant("blocked", "exclusion", _BLOCKED, 30.0),
    Variant("ours", "order", {"fails": 0.1, **_LOST, "drain_seconds": 20.0}),
    _ours(broken_statements.slow_claims, "order", **_REPLAYED),
    _ours(broken_statements.lost_answers, "exclusion", **_ANSWERS),
    _foreign(faulty_claimers.TwoStatements, "exclusion", **_ONE_STATEMENT),
    _foreign(faulty_claimers.StatementTimestamp, "order", **_LEASES),
]
