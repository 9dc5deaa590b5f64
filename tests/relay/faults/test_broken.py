"""Relays that are broken on purpose are found by what arrives, and sound ones pass where they fail."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from faststream_outbox.embedded import Database
from tests.relay.faults.round import run_relay_round
from tests.relay.faults.rules import check_arrivals
from tests.relay.faults.variants import BROKEN, SOUND, Variant
from tests.servers.redis import Redis
from tests.soak.checker import CLOCK_SLACK, FinalState, Kind, kinds
from tests.soak.history import Event
from tests.soak.row_histories import assemble

SEED = int(os.environ.get("OUTBOX_SOAK_SEED") or random.randrange(1_000_000))
# What is broken shows only when some things meet in time, and a round may miss that; it must be seen in one of these.
ROUNDS, SECONDS = 3, 5.0
# What only the end tells.
TOLD_IN_THE_END = ("loss", "attempt", "dead")


@pytest.mark.parametrize("variant", BROKEN, ids=lambda variant: variant.name)
def test_what_is_broken_is_found(outbox_postgres: Database, redis_server: Redis, variant: Variant) -> None:
    def seen(events: Sequence[Event]) -> bool:
        # An opinion on an unfinished history decides when to stop, and nothing else.
        return variant.kind in kinds(check_arrivals(assemble(events), FinalState(), CLOCK_SLACK, once=True))

    print(f"OUTBOX_SOAK_SEED={SEED}")  # noqa: T201 - to repeat the run
    found: Counter[Kind] = Counter()
    enough: dict[str, Any] = {} if variant.kind in TOLD_IN_THE_END else {"enough": seen}
    for attempt in range(ROUNDS):
        settings = variant.settings(outbox_postgres, SEED + attempt)
        found += kinds(run_relay_round(settings, outbox_postgres, SECONDS, redis_server, **enough).violations)
        if variant.kind in found:
            return
    pytest.fail(f"{variant.name} went unnoticed; all that was found: {dict(found)}")


@pytest.mark.parametrize("variant", SOUND, ids=lambda variant: variant.name)
def test_what_is_sound_passes_where_the_broken_fail(
    outbox_postgres: Database, redis_server: Redis, variant: Variant
) -> None:
    result = run_relay_round(variant.settings(outbox_postgres, SEED), outbox_postgres, SECONDS, redis_server)
    assert result.violations == [], result.stories
    assert result.counts["messages arrived"] >= 100
