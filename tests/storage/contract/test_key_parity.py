"""One random history of keys, told to memory and to Postgres: they answer alike at every step."""

import random
from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.storage import Ack, Dead, NewRow, Outcome, Park, Retry, Settlement
from faststream_outbox.storage.ordering import KeyAction, ParkKey, ReleaseKey, RetryKey, Run, SkipKey
from tests.backends import Backend
from tests.storage.contract.random_histories import tell
from tests.storage.contract.test_runs import begun

KEYS = "abcd"
LATER = 1000.0
# Far apart, so that the seconds that the test itself takes never decide.
LEASE, STEPS = 500.0, (300.0, 700.0)


class Player:
    """Plays a history on one backend; random choices are made by numbers, so that two players choose alike."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.runs: list[Run] = []

    async def insert(self, rng: random.Random) -> object:
        delay = timedelta(seconds=rng.choice([0, 0, 0, LATER]))
        headers = rng.choice([None, {}, {"x": 1}])
        rows = [NewRow("q", b"%d" % n, headers, key=rng.choice(KEYS), activate_in=delay) for n in range(4)]
        return await self.backend.insert(*rows)

    async def claim(self, rng: random.Random) -> object:
        keys, rows, suspects = rng.randint(1, 3), rng.randint(1, 4), rng.random() < 0.3
        async with self.backend.store.connect() as lane:
            claimed = await lane.claim_runs(
                begun(), keys=keys, rows_per_key=rows, lease_seconds=LEASE, suspects=suspects
            )
        self.runs += claimed.runs
        return [[(row.id, row.deliveries_count) for row in run.rows] for run in by_head(claimed.runs)], claimed.suspects

    async def settle(self, rng: random.Random) -> object:
        last: list[Outcome] = [Ack(), Retry(LATER, 1), Dead("rejected", "x"), Park(Dead("rejected", "y", 2))]
        settlements = []
        for run in by_head(self.runs):
            outcomes: list[Outcome] = [Ack()] * rng.randrange(len(run.rows))
            outcomes.append(rng.choice(last))
            if rng.random() < 0.5:
                rows = zip(run.rows, outcomes, strict=False)
                settlements.append(Settlement.of_run(run.lease, [(row.id, outcome) for row, outcome in rows]))
        held = []
        async with self.backend.store.connect() as lane:
            for settlement in settlements:
                held += [lease.row_id for lease in (await lane.settle([settlement])).held]
        return held

    async def act(self, rng: random.Random) -> object:
        actions: list[KeyAction] = [RetryKey(), ReleaseKey(), ParkKey("because"), SkipKey("because")]
        async with self.backend.transaction() as session:
            return await self.backend.store.act_on_key(session, rng.choice(actions), queue="q", key=rng.choice(KEYS))

    async def wait(self, rng: random.Random) -> object:
        await self.backend.pass_time(rng.choice(STEPS))
        return None

    async def state(self) -> object:
        rows = [
            (
                *(r.id, r.entity_key, r.headers, r.attempts_count, r.deliveries_count, r.acquired_token is None),
                *(r.next_attempt_epoch == float("inf"), r.first_attempt_at is None, r.last_attempt_at is None),
            )
            for r in await self.backend.rows()
        ]
        async with self.backend.store.connect() as lane:
            stats = [
                (*(s.ready, s.scheduled, s.in_flight, s.expired, s.blocked), s.blocked_keys, s.parked_keys, s.dead)
                for s in await lane.stats()
            ]
        async with self.backend.transaction() as session:
            found = await self.backend.store.read_keys(session)
            found += await self.backend.store.read_keys(session, state="in_flight")
        keys = [(k.key, k.state, k.cause, k.waiting, k.head_id, k.attempts, round(k.age / 100)) for k in found]
        dead = [
            (d.original_id, d.attempts_count, d.failure_reason, d.last_exception)
            for d in await self.backend.dead_letters()
        ]
        return rows, stats, keys, sorted(dead)


def by_head(runs: list[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (run.rows[0].id, run.rows[0].deliveries_count, len(run.rows)))


@pytest.mark.parametrize("seed", range(5))
async def test_memory_and_postgres_tell_one_story(engine: AsyncEngine, seed: int) -> None:
    actions = ["insert", "insert", "claim", "claim", "claim", "settle", "settle", "act", "act", "wait"]
    await tell(engine, Player, actions, steps=100, seed=seed)
