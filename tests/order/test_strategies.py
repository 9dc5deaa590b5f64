"""Every strategy keeps order while everything around it goes wrong."""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from faststream_outbox import publish_functions_ddl
from faststream_outbox.embedded import Database
from tests.order.producer import MixedProducer
from tests.order.settings import MIXED, ORDERINGS, STRATEGIES, OrderSettings, with_long_leases
from tests.soak import __main__ as command
from tests.soak.least import KILLED, PAUSED, TERMINATED, Least
from tests.soak.round import Result, run_round
from tests.soak.settings import OUTBOX, FaultRates, Settings

# A round waits until its table is empty, which takes a lease of a minute at most.
pytestmark = pytest.mark.timeout(500)

SEED = int(os.environ.get("OUTBOX_SOAK_SEED") or random.randrange(1_000_000))


# A busy machine needs longer than the shortest round to do as much.
LONGEST = 90.0
LEAST = Least(
    10.0,
    {"rows acked": 200, "rows retried": 1, "dead letters replayed": 1, "leases found lost": 3, "rollbacks": 1},
    {KILLED: 2, PAUSED: 2, TERMINATED: 2},
)
LEAST_WITH_LONG_LEASES = Least(10.0, {"rows acked": 200}, {("workers killed",): 2, ("workers isolated",): 2})


@pytest.mark.parametrize("strategy", [*ORDERINGS, MIXED])
def test_nothing_breaks_under_faults(outbox_postgres: Database, strategy: str) -> None:
    print(f"OUTBOX_SOAK_SEED={SEED}")  # noqa: T201 - to repeat the run
    in_sql: dict[str, Any] = {"producer": MixedProducer, "prepare": tuple(publish_functions_ddl(OUTBOX))}
    settings = OrderSettings(
        outbox_postgres.url("asyncpg"),
        *(Path(), SEED),
        until=0.0,
        strategy=strategy,
        rate=60.0,
        fails=0.1,
        replay_every=0.3,
        faults=FaultRates(every_seconds=0.5),
        **(in_sql if strategy == MIXED else {}),
    )
    result = run_round(settings, outbox_postgres, LONGEST, least=LEAST)
    assert result.violations == [], result.stories
    assert LEAST.lacks(result.counts, result.faults) == {}, "it was an idle run"


def test_nothing_breaks_under_faults_with_leases_of_a_minute(outbox_postgres: Database) -> None:
    """Nothing that a living process has is taken by another, and none starts what others may have taken."""
    print(f"OUTBOX_SOAK_SEED={SEED}")  # noqa: T201 - to repeat the run
    settings = OrderSettings(outbox_postgres.url("asyncpg"), Path(), SEED, until=0.0, strategy=MIXED, rate=60.0)
    least = LEAST_WITH_LONG_LEASES
    result = run_round(with_long_leases(settings, 60.0), outbox_postgres, LONGEST, least=least)
    assert result.violations == [], result.stories
    assert least.lacks(result.counts, result.faults) == {}, "it was an idle run"


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
