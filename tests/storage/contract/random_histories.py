"""One random history, told to memory and to Postgres."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from tests.backends import Backend, MemoryBackend, PostgresBackend


async def tell(
    engine: AsyncEngine, player: Callable[[Backend], Any], actions: Sequence[str], *, steps: int, seed: int
) -> None:
    """Have two players do the same, by the same numbers; they must answer alike, and be in one state at every step."""
    real = PostgresBackend(engine)
    await real.create()
    players = player(MemoryBackend()), player(real)
    rng = random.Random(seed)
    for step in range(steps):
        action, choices = rng.choice(actions), rng.random()
        in_memory, in_postgres = [await getattr(each, action)(random.Random(choices)) for each in players]
        where = f"seed {seed}, step {step}: {action}"
        assert in_memory == in_postgres, where
        assert await players[0].state() == await players[1].state(), where
