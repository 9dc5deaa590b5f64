"""One random history, told to memory and to Postgres: they answer alike at every step."""

import random
from collections.abc import Set as AbstractSet
from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.storage import (
    Ack,
    ClaimCursor,
    Dead,
    NewRow,
    OutboxRow,
    Outcome,
    Retry,
    Settlement,
    TimerConflict,
)
from tests.backends import Backend, everywhere
from tests.storage.contract.random_histories import tell

QUEUES = ["a", "b", "c"]


class Player:
    """Plays a history on one backend; random choices are made by numbers, so that two players choose alike."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.cursor = ClaimCursor(QUEUES)
        self.claimed: list[OutboxRow] = []

    async def insert(self, rng: random.Random) -> object:
        rows = [
            NewRow(rng.choice(QUEUES), b"%d" % n, key=rng.choice([None, None, None, "k"]), activate_in=self._delay(rng))
            for n in range(rng.randint(1, 8))
        ]
        async with self.backend.transaction() as session:
            return await self.backend.store.insert_many(session, rows)

    async def timer(self, rng: random.Random) -> object:
        row = NewRow("a", b"t", timer_id=rng.choice("xyz"), activate_in=self._delay(rng))
        async with self.backend.transaction() as session:
            conflict: TimerConflict = "extend" if rng.random() < 0.5 else "ignore"
            return await self.backend.store.insert(session, row, timer_conflict=conflict) is not None

    async def cancel(self, rng: random.Random) -> object:
        async with self.backend.transaction() as session:
            return await self.backend.store.cancel_timer(session, queue="a", timer_id=rng.choice("xyz"))

    async def claim(self, rng: random.Random) -> object:
        self.cursor.restart()  # a sweep each time: how long sweeps take is not part of the contract
        async with self.backend.store.connect() as lane:
            claim = await lane.claim(self.cursor, limit=rng.randint(1, 9), lease_seconds=rng.choice([1000, 5000]))
        self.claimed += claim.rows
        return [(row.id, row.deliveries_count, row.suspect) for row in claim.rows], claim.more

    async def claim_suspects(self, rng: random.Random) -> object:
        taken = []
        async with self.backend.store.connect() as lane:
            for _ in range(rng.randint(1, 100)):
                rows = (await lane.claim_suspect(everywhere("b", "a"), lease_seconds=2000)).rows
                self.claimed += rows
                taken += rows
        # Which of several comes first is not part of the contract: take them all, or none is compared.
        left = {row.id for row in taken}
        return len(taken), sorted(left) if len(taken) < 100 else None

    async def renew(self, rng: random.Random) -> object:
        async with self.backend.store.connect() as lane:
            return self._ids(await lane.renew([row.lease for row in self._some(rng)], lease_seconds=3000))

    async def release(self, rng: random.Random) -> object:
        async with self.backend.store.connect() as lane:
            return self._ids(await lane.release(self._some(rng)))

    async def settle(self, rng: random.Random) -> object:
        outcomes: list[Outcome] = [Ack(), Retry(1500.0, 2), Dead("rejected", "x")]
        async with self.backend.store.connect() as lane:
            settled = await lane.settle(Settlement(row.lease, rng.choice(outcomes)) for row in self._some(rng))
        return self._ids(settled.held)

    async def wait(self, rng: random.Random) -> object:
        await self.backend.pass_time(rng.choice([100, 1200, 3300]))
        return None

    async def state(self) -> object:
        rows = [
            (
                *(r.id, r.queue, r.entity_key, r.payload, r.timer_id, r.attempts_count, r.deliveries_count),
                *(r.acquired_token is None, r.first_attempt_at is None),
            )
            for r in await self.backend.rows()
        ]
        async with self.backend.store.connect() as lane:
            stats = [
                (
                    *(s.queue, s.ready, s.scheduled, s.in_flight, s.expired, s.dead),
                    *(s.blocked, s.blocked_keys, s.parked_keys),
                )
                for s in await lane.stats()
            ]
        dead = sorted((d.original_id, d.attempts_count, d.deliveries_count) for d in await self.backend.dead_letters())
        return rows, stats, dead

    def _some(self, rng: random.Random) -> list[OutboxRow]:
        """Pick among all that was ever claimed, the lost and the settled too."""
        ordered = sorted(self.claimed, key=lambda row: (row.id, row.deliveries_count))
        return [row for row in ordered if rng.random() < 0.3]

    @staticmethod
    def _delay(rng: random.Random) -> timedelta:
        return timedelta(seconds=rng.choice([0, 0, 0, 2000, 4000]))

    @staticmethod
    def _ids(leases: AbstractSet[object]) -> list[int]:
        return sorted(lease[0] for lease in leases)  # type: ignore[index]


@pytest.mark.parametrize("seed", range(6))
async def test_memory_and_postgres_tell_one_story(engine: AsyncEngine, seed: int) -> None:
    actions = ["insert", "insert", "timer", "cancel", "claim", "claim", "claim_suspects"]
    actions += ["renew", "release", "settle", "settle", "wait"]
    await tell(engine, Player, actions, steps=120, seed=seed)
