"""When keys are looked at."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

from faststream_outbox.storage.ordering import RunClaim
from faststream_outbox.subscriber.keys import Keys


def lane(*, suspects: bool) -> Any:
    """Make a lane that finds nothing to claim."""
    claim = RunClaim([], expires_at=0.0, more=False, next_due=None, suspects=suspects)
    return SimpleNamespace(claim_runs=AsyncMock(return_value=claim))


async def test_suspects_are_looked_for_once_some_were_met() -> None:
    keys = Keys(["q"], rows_per_key=100, lease_seconds=60.0)
    assert not keys.have_suspects
    await keys.claim(lane(suspects=False), 100, 100)
    assert not keys.have_suspects
    await keys.claim(lane(suspects=True), 100, 100)
    assert keys.have_suspects
