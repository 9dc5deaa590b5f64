"""The proof: workers are killed two hundred times, and every transfer is moved and notified exactly once."""

import os
from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from tests.exactly_once.run import REFUSED, SEED, open_bank

# More of them on demand.
KILLS = int(os.environ.get("OUTBOX_TEST_KILLS", "200"))
STOP_SHARE = 0.07
# Hardly ever needed: only if nobody took over from a worker that was stopped.
MORE = 20
# The latest statement of a transaction that was cut off; the last of these is the library's, with its commit to come.
POINTS = {"UPDATE accounts", "INSERT INTO ledger", "DELETE FROM outbox"}


@pytest.mark.timeout(120 + KILLS)
async def test_every_transfer_is_moved_once_whoever_is_killed(outbox_postgres: Database, tmp_path: Path) -> None:
    async with open_bank(outbox_postgres, tmp_path, seed=SEED) as bank:
        await bank.strike(KILLS, stop_share=STOP_SHARE)
        await bank.strike(MORE, stop_share=1.0, enough=bank.has_refused_a_commit)
        await bank.drain()
        transfers, toll, counts = await bank.tables.transfers(), bank.toll, bank.counts()
        print(f"{transfers} transfers\n{toll}\n{dict(counts)}")  # noqa: T201 - what the proof is worth
        assert await bank.tables.violations() == {}
    assert toll.kills >= KILLS
    # And it was no idle run: transactions were cut off at several points, and workers that lived on had lost leases.
    assert transfers >= KILLS // 4
    assert toll.kills_in_transaction >= KILLS // 10
    assert toll.points.keys() >= POINTS
    assert toll.stops_in_transaction > 0
    assert counts[REFUSED] > 0
    assert counts["nacked_retried"] > 0
