"""Every strategy keeps order while everything around it goes wrong."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from tests.order.settings import MIXED, ORDERINGS, STRATEGIES, OrderSettings
from tests.soak import __main__ as command
from tests.soak.round import Result, run_round
from tests.soak.settings import FaultRates, Settings

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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_command_takes_a_strategy(
    outbox_postgres_server: Database, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    asked = []

    def round_of_its_own(settings: Settings, *_: object, **__: object) -> Result:
        asked.append(settings)
        return Result(settings.seed, [], Counter(), Counter(), 0.1, {})

    monkeypatch.setattr(command, "run_round", round_of_its_own)
    arguments = ["--order", strategy, "--seconds", "1", "--seed", "41", "--processes", "4"]
    assert command.main([*arguments, "--dsn", outbox_postgres_server.dsn]) == command.PASSED
    [settings] = asked
    assert isinstance(settings, OrderSettings)
    assert (settings.strategy, settings.seed, settings.workers, settings.producers) == (strategy, 41, 3, 1)
