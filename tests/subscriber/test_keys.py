"""When keys are looked at."""

from typing import Any, cast

from faststream_outbox.storage import StoreConnection
from faststream_outbox.storage.ordering import RunClaim
from faststream_outbox.subscriber.keys import Keys


class Lane:
    """A lane that finds nothing to claim."""

    def __init__(self, *, suspects: bool) -> None:
        self.suspects = suspects

    async def claim_runs(self, *_: Any, **__: Any) -> RunClaim:
        return RunClaim([], expires_at=0.0, more=False, next_due=None, suspects=self.suspects)


async def test_suspects_are_looked_for_once_some_were_met() -> None:
    keys = Keys(["q"], rows_per_key=100, lease_seconds=60.0)
    assert not keys.have_suspects
    await keys.claim(cast("StoreConnection", Lane(suspects=False)), room=100)
    assert not keys.have_suspects
    await keys.claim(cast("StoreConnection", Lane(suspects=True)), room=100)
    assert keys.have_suspects
