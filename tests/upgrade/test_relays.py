"""Relays of an older version and of this one share the tables: all rows arrive, those of each key in order."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from tests.order.broken_statements import claim_of_leased_heads
from tests.order.settings import MIXED
from tests.order.variants import PACE
from tests.relay.faults.round import run_relay_round
from tests.relay.faults.rules import check_arrivals
from tests.relay.faults.settings import NO_FAULTS
from tests.servers.redis import Redis
from tests.soak.checker import CLOCK_SLACK, FinalState, Kind, kinds
from tests.soak.history import Event
from tests.soak.least import KILLED, Least
from tests.soak.row_histories import assemble
from tests.soak.settings import FaultRates
from tests.upgrade.older import VERSIONS
from tests.upgrade.settings import WORK_OF_BOTH, RelayUpgradeRound, RelayUpgradeSettings

# A busy machine needs long for a round, and until its table is empty.
pytestmark = pytest.mark.timeout(500)

SEED = int(os.environ.get("OUTBOX_SOAK_SEED") or random.randrange(1_000_000))

# A busy machine needs longer than the shortest round to do as much.
LONGEST = 45.0
LEAST = Least(6.0, {**WORK_OF_BOTH, "rows acked": 200}, {KILLED: 1})


def settings(database: Database, older: Path, seed: int = SEED) -> RelayUpgradeSettings:
    return RelayUpgradeSettings(database.url("asyncpg"), Path(), seed, until=0.0, older=older)


@pytest.mark.parametrize("older", VERSIONS, indirect=True)
def test_relays_of_both_versions_share_the_rows(outbox_postgres: Database, redis_server: Redis, older: Path) -> None:
    print(f"OUTBOX_SOAK_SEED={SEED}")  # noqa: T201 - to repeat the run
    faults = FaultRates(every_seconds=1.0, outage=1)
    round_ = replace(settings(outbox_postgres, older), strategy=MIXED, faults=faults)
    result = run_relay_round(round_, outbox_postgres, LONGEST, redis_server, make=RelayUpgradeRound, least=LEAST)
    assert result.violations == [], result.stories
    print(dict(result.counts), dict(result.faults))  # noqa: T201 - how much arrived again
    assert LEAST.lacks(result.counts, result.faults) == {}, "it was an idle run"
    assert result.counts["messages arrived"] >= 200


@pytest.mark.parametrize("older", list(VERSIONS)[-1:], indirect=True)
def test_a_relay_that_takes_keys_of_the_other_version_is_found(
    outbox_postgres: Database, redis_server: Redis, older: Path
) -> None:
    def seen(events: Sequence[Event]) -> bool:
        return "duplicate" in kinds(check_arrivals(assemble(events), FinalState(), CLOCK_SLACK, once=True))

    found: Counter[Kind] = Counter()
    for attempt in range(3):
        broken = {"spoil": claim_of_leased_heads, "faults": NO_FAULTS, "lease_seconds": 20.0, "drain_seconds": 0.5}
        round_ = replace(settings(outbox_postgres, older, SEED + attempt), **{**PACE, **broken})
        result = run_relay_round(round_, outbox_postgres, 15.0, redis_server, make=RelayUpgradeRound, enough=seen)
        found += kinds(result.violations)
        if "duplicate" in found:
            return
    pytest.fail(f"It went unnoticed; all that was found: {dict(found)}")
