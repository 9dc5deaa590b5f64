"""The check finds what is broken on purpose, so that it would find what is broken by accident."""

from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from tests.exactly_once.run import SEED, Run, open_bank

# A signal has to come at the right moment, and most do not; more than enough for one that does.
MOST_SIGNALS = 100
# What is broken, and the share of signals that pause a worker instead of killing it.
VARIANTS = {"apart": 0.0, "unfenced": 1.0}


async def moved_twice(bank: Run) -> bool:
    """Whether something was done twice. What is missing may still come; what was done twice stays so."""
    return any("several" in name for name in await bank.tables.violations())


@pytest.mark.parametrize(("variant", "stop_share"), VARIANTS.items())
async def test_what_is_broken_is_found(
    outbox_postgres: Database, tmp_path: Path, variant: str, stop_share: float
) -> None:
    async with open_bank(outbox_postgres, tmp_path, seed=SEED, variant=variant) as bank:
        await bank.strike(MOST_SIGNALS, stop_share=stop_share, enough=lambda: moved_twice(bank))
        print(bank.toll)  # noqa: T201 - how long it took to find
        assert await moved_twice(bank)
