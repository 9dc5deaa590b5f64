"""Where keys are looked for whose lease ran out."""

from typing import Any

from sqlalchemy import text

from faststream_outbox.engine.claim.key_claims import KeyClaims
from faststream_outbox.engine.options import DEFAULTS
from faststream_outbox.storage import NewRow
from tests.backends import PostgresBackend


class Counting:
    """A lane that counts its claims of runs."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane
        self.claims = 0

    async def claim_runs(self, *args: Any, **options: Any) -> Any:
        self.claims += 1
        return await self._lane.claim_runs(*args, **options)


async def test_suspects_are_looked_for_where_they_were_met(postgres: PostgresBackend) -> None:
    """Not through all keys: with a million of them that would take longer than a lane is waited for."""
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload, next_attempt_at) "
        "SELECT 'q', lpad(n::text, 6, '0'), 'x', 'infinity' FROM generate_series(1, 5000) AS n"
    )
    await postgres.insert(NewRow("other", b"", key="a"))
    expired = "acquired_token = gen_random_uuid(), lease_expires_at = now(), next_attempt_at = now()"
    await postgres.run(f"UPDATE outbox SET {expired} WHERE entity_key IN ('002700', '002710', '004900')")
    keys, found = KeyClaims(["q", "other"], DEFAULTS, rows_per_key=100), list[str | None]()
    async with postgres.store.connect() as real:
        lane: Any = Counting(real)
        assert not keys.have_suspects
        assert await keys.claim_suspect(lane) is None
        assert lane.claims == 0
        for _ in range(50):
            await keys.claim(lane, 100, 100)
            if not keys.more:
                break
        lane.claims = 0
        while (claim := await keys.claim_suspect(lane)) is not None:
            found += [run.key for run in claim.runs]
        assert sorted(map(str, found)) == ["002700", "002710", "004900"]
        assert not keys.have_suspects
        assert lane.claims <= 2 * 3 + 10  # one for each, and one for each place where no more are


async def test_keys_that_others_had_first_are_told_whether_they_are_fresh_or_suspects(
    postgres: PostgresBackend,
) -> None:
    lost = list[tuple[str, int]]()
    keys = KeyClaims(["q"], DEFAULTS, rows_per_key=100, on_lost=lambda *told: lost.append(told))
    await postgres.insert(*(NewRow("q", b"", key=key) for key in ("dead", "free")))
    expired = "acquired_token = gen_random_uuid(), lease_expires_at = now()"
    await postgres.run(f"UPDATE outbox SET {expired} WHERE entity_key = 'dead'")
    async with postgres.store.connect() as lane, postgres.engine.begin() as rival:
        await rival.execute(text("SELECT id FROM outbox FOR UPDATE"))
        while keys.more and not (lost and keys.have_suspects):
            assert not (await keys.claim(lane, 100, 100)).runs
        assert set(lost) == {("q", 1)}
        lost.clear()
        assert await keys.claim_suspect(lane) is None
        assert lost == [("q", 1)]
