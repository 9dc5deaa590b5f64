"""What a claimer does after rows came back, and while one that came back twice waits."""

import asyncio
import math

import pytest

from faststream_outbox.engine.claim.idle_wait import IdleWait
from faststream_outbox.engine.claim.key_claims import KeyClaims
from faststream_outbox.engine.claim.ledger_claims import LedgerClaims
from faststream_outbox.engine.claim.pauses import Pauses
from faststream_outbox.engine.context import EngineContext
from faststream_outbox.engine.options import DEFAULTS
from faststream_outbox.storage import OutboxRow
from tests.backends import PostgresBackend
from tests.engine.pipelines import fill


async def test_the_next_claim_finds_rows_that_were_recovered(postgres: PostgresBackend) -> None:
    """They lie before the newest rows, and the next sweep may be half a minute away."""
    context = EngineContext(postgres.store, ["q"], DEFAULTS, monitor=None, announce=None, row_type=OutboxRow)
    claims = LedgerClaims(context, KeyClaims(["q"], DEFAULTS, rows_per_key=1), Pauses(context))
    await fill(postgres, 3)
    await postgres.claim("q", lease_seconds=1)
    await fill(postgres, 1)
    assert len((await claims.claim_rows(10)).rows) == 1
    claims.cursor._sweep_at = math.inf
    await postgres.pass_time(2)
    assert await claims.recover()
    assert len((await claims.claim_rows(10)).rows) == 3
    await context.claim_lane.close()


@pytest.mark.parametrize("due", [0.0, -5.0])
async def test_waits_for_a_row_that_is_due_and_cannot_be_claimed_become_longer(
    monkeypatch: pytest.MonkeyPatch, due: float
) -> None:
    """Another process holds it, or it is a suspect that waits until it can run alone."""
    waits, timeout = list[float](), asyncio.timeout

    def shortened(seconds: float) -> asyncio.Timeout:
        waits.append(seconds)
        return timeout(0)

    idle_wait = IdleWait(DEFAULTS)
    monkeypatch.setattr(asyncio, "timeout", shortened)
    for _ in range(4):
        await idle_wait.wait(due)
    assert waits == sorted(set(waits))
