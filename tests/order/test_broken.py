"""What is broken on purpose is found, and what is sound passes where the broken fail."""

import os
import random
from collections import Counter
from collections.abc import Sequence

import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from tests.order import first_designs
from tests.order.variants import OURS, SOUND, STRANGERS, Variant
from tests.soak.checker import CLOCK_SLACK, FinalState, Kind, kinds
from tests.soak.history import Event
from tests.soak.least import Least
from tests.soak.round import run_round
from tests.soak.row_histories import assemble

# A round waits until its table is empty, which takes a lease of a minute at most.
pytestmark = pytest.mark.timeout(500)

SEED = int(os.environ.get("OUTBOX_SOAK_SEED") or random.randrange(1_000_000))
# What is broken shows only when some things meet in time, and a round may miss that; it must be seen in one of these.
ROUNDS = 3
# How long a sound round may take on a busy machine until it has done enough.
LONGEST = 60.0


@pytest.mark.parametrize("variant", [*OURS, *STRANGERS], ids=lambda variant: variant.name)
def test_what_is_broken_is_found(outbox_postgres: Database, variant: Variant) -> None:
    def seen(events: Sequence[Event]) -> bool:
        # An opinion on an unfinished history decides when to stop, and nothing else.
        return variant.kind in kinds(settings.check(assemble(events), FinalState(), CLOCK_SLACK))

    print(f"OUTBOX_SOAK_SEED={SEED}")  # noqa: T201 - to repeat the run
    found: Counter[Kind] = Counter()
    for attempt in range(ROUNDS):
        settings = variant.settings(outbox_postgres, SEED + attempt)
        found += kinds(run_round(settings, outbox_postgres, variant.seconds, enough=seen).violations)
        if variant.kind in found:
            return
    pytest.fail(f"{variant.name} went unnoticed; all that was found: {dict(found)}")


@pytest.mark.parametrize("variant", SOUND, ids=lambda variant: variant.name)
def test_what_is_sound_passes_where_the_broken_fail(outbox_postgres: Database, variant: Variant) -> None:
    work = {"rows acked": 30} | ({"dead letters replayed": 5} if variant.name == "slow_claims" else {})
    least = Least(variant.seconds / 2, work, {})
    result = run_round(variant.settings(outbox_postgres, SEED), outbox_postgres, LONGEST, least=least)
    # Claimers of their own have no time to come to an end here.
    drained = variant.name in ("ours", "isolated", "blocked", "slow_claims", "lost_answers")
    broken = [each for each in result.violations if drained or each.kind != "stuck"]
    assert broken == [], result.stories
    assert least.lacks(result.counts, result.faults) == {}, "it was an idle run"


def test_a_statement_that_has_changed_leaves_no_variant_behind(outbox_postgres: Database) -> None:
    """Who changes a statement is told here that a variant does not break it any more."""
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    for variant in OURS:
        variant.settings(outbox_postgres, SEED).broker(engine)


def test_the_second_approach_as_it_was_written_is_refused(outbox_postgres: Database) -> None:
    with psycopg.connect(outbox_postgres.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE outbox (id bigint, entity_key text, status text, locked_at timestamptz)")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="FOR UPDATE is not allowed with DISTINCT"):
            connection.execute(first_designs.SKIP_LOCKED)
        connection.execute(first_designs.SKIP_LOCKED_ACCEPTED)
