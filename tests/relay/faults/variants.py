"""What is broken on purpose, the rule that finds it, and the settings under which that happens soon."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from faststream_outbox.embedded import Database
from tests.order.broken_statements import claim_of_leased_heads, gap_behind_the_head, no_producer_lock
from tests.order.variants import PACE
from tests.order.variants import Variant as OrderVariant
from tests.relay.faults import broken_relays
from tests.relay.faults.settings import NO_FAULTS, Break, RelayRoundSettings
from tests.soak.checker import Kind
from tests.soak.settings import FaultRates

# Nothing is lost by the way but what is to be lost.
_PACE: Final[Mapping[str, Any]] = {
    **PACE,
    "workers": 2,
    "lease_seconds": 20.0,
    "handler_seconds": 0.02,
    "drain_seconds": 40.0,
    "faults": NO_FAULTS,
}
# Of the server alone, so that nothing else explains what is found.
_OUTAGES: Final[Mapping[str, Any]] = {
    "faults": FaultRates(every_seconds=0.3, kill=0, terminate=0, pause=0, outage=1),
    "lease_seconds": 0.5,
}
# Long enough that a busy machine sends and settles within a lease, which is not renewed here.
_STALLS: Final[Mapping[str, Any]] = {"lease_seconds": 3.0}


class Variant(OrderVariant):
    """One fault of a relay, or of its store."""

    def settings(self, database: Database, seed_number: int) -> RelayRoundSettings:
        """Return settings under which the fault shows."""
        settings = RelayRoundSettings(database.url("asyncpg"), Path(), seed_number, until=0.0)
        return replace(settings, **{**_PACE, **self.changes})


def _relay(broken: Break, kind: Kind, **changes: Any) -> Variant:
    return Variant(broken.__name__, kind, {"broken": broken, "drain_seconds": 0.5, **changes})


def _store(spoil: Any, kind: Kind, **changes: Any) -> Variant:
    return Variant(spoil.__name__, kind, {"spoil": spoil, "drain_seconds": 0.5, **changes})


BROKEN: Final = [
    _relay(broken_relays.settled_unconfirmed, "loss", **_OUTAGES),
    _relay(broken_relays.all_at_once, "order"),
    _relay(broken_relays.past_a_failure, "order"),
    _relay(broken_relays.lease_ignored, "duplicate", **_STALLS),
    _relay(broken_relays.outages_blamed, "attempt", **_OUTAGES),
    _relay(broken_relays.outages_refused, "dead", **_OUTAGES),
    _store(claim_of_leased_heads, "duplicate"),
    _store(gap_behind_the_head, "order"),
    _store(no_producer_lock, "order", lingering=0.5, hot_keys=2, cold_keys=1),
]
# The same rounds, with nothing broken.
SOUND: Final = [
    Variant("failed_sends", "order", {"broken": broken_relays.failed_sends}),
    Variant("stalls", "duplicate", {"broken": broken_relays.stalls, **_STALLS}),
    Variant("outages", "loss", _OUTAGES),
]
