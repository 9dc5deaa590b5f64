"""Every strategy keeps order while everything around it goes wrong."""

import os
import random
from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from tests.order.settings import MIXED, ORDERINGS, OrderSettings
from tests.soak.round import run_round
from tests.soak.settings import FaultRates

SEED = int(os.environ.get("OUTBOX_SOAK_SEED") or random.randrange(1_000_000))


@pytest.mark.parametrize(("strategy", "seconds"), [*((name, 30.0) for name in ORDERINGS), (MIXED, 10.0)])
def test_nothing_breaks_under_faults(outbox_postgres: Database, strategy: str, seconds: float) -> None:
    print(f"OUTBOX_SOAK_SEED={SEED}")  # noqa: T201 - to repeat the run
    settings = OrderSettings(
        outbox_postgres.url("asyncpg"),
        *(Path(), SEED),
        until=0.0,
        strategy=strategy,
        rate=60.0,
        faults=FaultRates(every_seconds=0.5),
    )
    result = run_round(settings, outbox_postgres, seconds)
    assert result.violations == [], result.stories
    # And it was no idle run.
    counts, faults = result.counts, result.faults
    assert counts["rows acked"] >= 50
    assert counts["rows retried"] >= 1
    assert counts["leases found lost"] >= 3
    assert counts["suspects claimed"] >= 3
    assert counts["rollbacks"] >= 1
    assert faults["workers killed"] + faults["producers killed"] >= 2
    assert faults["workers paused"] + faults["producers paused"] >= 2
    assert faults["connections terminated"] >= 2
