"""Processes of an older version and of this one share the tables: nothing is lost, and every key keeps its order."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from tests.order.broken_statements import claim_of_leased_heads
from tests.order.rules import check_keys
from tests.order.settings import MIXED
from tests.order.variants import PACE
from tests.soak.checker import FinalState, Kind, kinds
from tests.soak.history import Event
from tests.soak.least import KILLED, Least
from tests.soak.round import run_round
from tests.soak.row_histories import assemble
from tests.soak.settings import FaultRates
from tests.upgrade.older import VERSIONS
from tests.upgrade.settings import WORK_OF_BOTH, UpgradeRound, UpgradeSettings

# A busy machine needs long for a round, and until its table is empty.
pytestmark = pytest.mark.timeout(500)

SEED = int(os.environ.get("OUTBOX_SOAK_SEED") or random.randrange(1_000_000))

# A busy machine needs longer than the shortest round to do as much.
LONGEST = 45.0
LEAST = Least(6.0, {**WORK_OF_BOTH, "rows retried": 1}, {KILLED: 1})


def settings(database: Database, older: Path, seed: int = SEED) -> UpgradeSettings:
    return UpgradeSettings(database.url("asyncpg"), Path(), seed, until=0.0, older=older)


@pytest.mark.parametrize("older", VERSIONS, indirect=True)
def test_both_versions_work_on_the_same_tables(outbox_postgres: Database, older: Path) -> None:
    print(f"OUTBOX_SOAK_SEED={SEED}")  # noqa: T201 - to repeat the run
    round_ = replace(settings(outbox_postgres, older), strategy=MIXED, rate=60.0, faults=FaultRates(every_seconds=1.0))
    result = run_round(round_, outbox_postgres, LONGEST, make=UpgradeRound, least=LEAST)
    assert result.violations == [], result.stories
    assert LEAST.lacks(result.counts, result.faults) == {}, "it was an idle run"


@pytest.mark.parametrize("older", list(VERSIONS)[-1:], indirect=True)
def test_a_version_that_takes_keys_of_the_other_is_found(outbox_postgres: Database, older: Path) -> None:
    def seen(events: Sequence[Event]) -> bool:
        return "exclusion" in kinds(check_keys(assemble(events), FinalState()))

    found: Counter[Kind] = Counter()
    for attempt in range(3):
        round_ = replace(settings(outbox_postgres, older, SEED + attempt), **PACE, spoil=claim_of_leased_heads)
        found += kinds(run_round(round_, outbox_postgres, 15.0, enough=seen, make=UpgradeRound).violations)
        if "exclusion" in found:
            return
    pytest.fail(f"It went unnoticed; all that was found: {dict(found)}")
