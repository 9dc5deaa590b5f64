"""The soak itself: the store survives it, and stores that are broken on purpose do not."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from tests.soak import __main__ as command
from tests.soak import broken
from tests.soak.checker import FinalState, Kind, Violation, check, kinds
from tests.soak.history import Event
from tests.soak.least import KILLED, PAUSED, TERMINATED, Least
from tests.soak.round import Result, run_round
from tests.soak.row_histories import assemble
from tests.soak.settings import FaultRates, Settings

SEED = int(os.environ.get("OUTBOX_SOAK_SEED") or random.randrange(1_000_000))
NO_FAULTS = FaultRates(every_seconds=60.0)
KILLS = FaultRates(every_seconds=0.25, kill=1, terminate=0, pause=0)


def settings(database: Database, driver: str, **changes: object) -> Settings:
    url = database.url(driver)
    return replace(Settings(url, Path(), SEED, until=0.0, workers=3, producers=1, lease_seconds=0.5), **changes)  # type: ignore[arg-type]  # fields by their names


# A busy machine needs longer than the shortest round to do as much.
LONGEST = 60.0
LEAST = Least(
    5.5,
    {
        "rows inserted": 100,
        "rows acked": 50,
        "rows retried": 10,
        "rows released": 3,
        "leases renewed": 10,
        "leases found lost": 3,
        "suspects claimed": 3,
        "rollbacks": 3,
    },
    {KILLED: 2, PAUSED: 1, TERMINATED: 2},
)


def test_nothing_breaks_under_faults(outbox_postgres: Database, driver: str) -> None:
    print(f"OUTBOX_SOAK_SEED={SEED}")  # noqa: T201 - to repeat the run
    round_ = settings(outbox_postgres, driver, faults=FaultRates(every_seconds=0.35))
    result = run_round(round_, outbox_postgres, LONGEST, least=LEAST)
    assert result.violations == [], result.stories
    assert LEAST.lacks(result.counts, result.faults) == {}, "it was an idle run"


@dataclass(frozen=True)
class Variant:
    """Something broken, the rule that tells of it, and what brings it out."""

    name: str
    kind: Kind
    slow: float = 0.1
    faults: FaultRates = NO_FAULTS


VARIANTS = [
    Variant("settle_without_fence", "zombie", slow=0.6),
    Variant("renew_without_fence", "zombie", slow=0.6),
    Variant("claim_of_what_is_leased", "exclusion"),
    Variant("claim_without_locks", "exclusion"),
    Variant("suspects_before_their_time", "exclusion", slow=0.6),
    Variant("claim_of_suspects_among_others", "suspect", slow=0.6),
    Variant("ack_that_leaves_the_row", "double effect"),
    Variant("release_that_still_counts", "deliveries"),
    Variant("retry_without_delay", "early"),
    Variant("retry_that_keeps_the_row", "stuck"),
    Variant("cancel_in_flight", "cancelled", slow=0.8),
    Variant("publish_past_the_transaction", "uncommitted"),
    Variant("burial_without_a_grave", "loss"),
    Variant("ack_first", "loss", slow=0.8, faults=KILLS),
]
# What only the final state of the tables tells.
TOLD_IN_THE_END = ("loss", "stuck")


# What is broken shows only when two things meet in time, and a round may miss that; it must be seen in one of these.
ROUNDS = 12


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_what_is_broken_is_found(outbox_postgres: Database, variant: Variant) -> None:
    part = "worker" if variant.name == "ack_first" else "store"
    spoiled = for_variants(outbox_postgres, variant, **{part: getattr(broken, variant.name)})
    found: Counter[Kind] = Counter()
    for attempt in range(ROUNDS):
        found += kinds(run_until_seen(replace(spoiled, seed=SEED + attempt), outbox_postgres, variant.kind).violations)
        if variant.kind in found:
            return
    pytest.fail(f"{variant.name} went unnoticed; all that was found: {dict(found)}")


def test_what_is_sound_passes_where_the_broken_fail(outbox_postgres: Database) -> None:
    sound = for_variants(outbox_postgres, Variant("sound", "loss", slow=0.6, faults=KILLS), drain_seconds=20.0)
    result = run_until_seen(sound, outbox_postgres, "loss")
    assert result.violations == [], result.stories


def for_variants(database: Database, variant: Variant, **changes: object) -> Settings:
    pace = {"lease_seconds": 0.3, "rate": 300.0, "drain_seconds": 1.5, "slow": variant.slow, "faults": variant.faults}
    return settings(database, "asyncpg", **{**pace, **changes})


def run_until_seen(spoiled: Settings, database: Database, kind: Kind) -> Result:
    if kind in TOLD_IN_THE_END:
        return run_round(spoiled, database, 1.5)

    def seen(events: Sequence[Event]) -> bool:
        # An opinion on an unfinished history decides when to stop, and nothing else.
        return kind in kinds(check(assemble(events), FinalState()))

    return run_round(spoiled, database, 5.0, enough=seen)


def test_a_statement_that_has_changed_leaves_no_variant_behind(outbox_postgres: Database) -> None:
    """Who changes a statement is told here that a variant does not break it any more."""
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    for variant in VARIANTS:
        if variant.name != "ack_first":
            getattr(broken, variant.name)(engine)


@pytest.mark.parametrize(("violations", "status"), [([], 0), ([Violation("zombie", "row1", "it histories")], 1)])
def test_the_command_tells_its_seed_and_what_broke(
    outbox_postgres_server: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    violations: list[Violation],
    status: int,
) -> None:
    seeds = []

    def round_of_its_own(settings: Settings, *_: object, **__: object) -> Result:
        seeds.append(settings.seed)
        return Result(settings.seed, violations, Counter({"rows inserted": 5}), Counter(), 0.1, {"row1": ["0.1 born"]})

    monkeypatch.setattr(command, "run_round", round_of_its_own)
    arguments = ["--seconds", "1", "--seed", "41", "--processes", "4", "--dsn", outbox_postgres_server.dsn]
    assert command.main(arguments) == status
    output = capsys.readouterr().out
    assert seeds == [41]
    assert "seed 41" in output
    assert "rows inserted" in output
    assert ("it histories" in output) is bool(violations)
    assert ("0.1 born" in output) is bool(violations)
    assert ("No violations." in output) is not bool(violations)
