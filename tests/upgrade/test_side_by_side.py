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
from tests.soak.round import run_round
from tests.soak.row_histories import assemble
from tests.soak.settings import FaultRates
from tests.upgrade.older import VERSIONS, build, lacks
from tests.upgrade.settings import UpgradeRound, UpgradeSettings

SEED = int(os.environ.get("OUTBOX_SOAK_SEED") or random.randrange(1_000_000))


@pytest.fixture(scope="module")
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    revision = VERSIONS[request.param]
    if reason := lacks(revision):
        pytest.skip(f"No older version to run beside this one: {reason}")
    return build(revision, tmp_path_factory.mktemp("older"))


def settings(database: Database, older: Path, seed: int = SEED) -> UpgradeSettings:
    return UpgradeSettings(database.url("asyncpg"), Path(), seed, until=0.0, older=older)


@pytest.mark.parametrize("older", VERSIONS, indirect=True)
def test_both_versions_work_on_the_same_tables(outbox_postgres: Database, older: Path) -> None:
    print(f"OUTBOX_SOAK_SEED={SEED}")  # noqa: T201 - to repeat the run
    round_ = replace(settings(outbox_postgres, older), strategy=MIXED, rate=60.0, faults=FaultRates(every_seconds=1.0))
    result = run_round(round_, outbox_postgres, 15.0, make=UpgradeRound)
    assert result.violations == [], result.stories
    # And it was no idle run, of neither version.
    counts, faults = result.counts, result.faults
    for version in ("older", "newer"):
        assert counts[f"rows claimed by the {version} version"] >= 50
        assert counts[f"commits of the {version} version"] >= 10
    assert counts["rows retried"] >= 1
    assert faults["workers killed"] + faults["producers killed"] >= 1


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
