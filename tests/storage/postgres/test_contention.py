"""Claimers that compete for keys: who comes second counts what it lost, and waits for nobody."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from faststream_outbox.storage import Ack, NewRow, Settlement, StoreLane
from faststream_outbox.storage.ordering import (
    AdvisoryLocks,
    HashShards,
    HeadLease,
    KeyCursor,
    Ordering,
    OwnShards,
    RunClaim,
    Shard,
)
from faststream_outbox.storage.ordering.key_cursor import BEGINNING
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.backends import PostgresBackend

KEYS = [f"k{number}" for number in range(12)]
STRATEGIES = [HeadLease(), AdvisoryLocks(), HashShards(count=4)]


def cursor(ordering: Ordering, *shards: int) -> KeyCursor:
    """A claimer's cursor, at the first key."""
    count = ordering.count if isinstance(ordering, HashShards) else 1
    own = OwnShards(count, [Shard("q", number) for number in shards or range(count)])
    made = KeyCursor(["q"], ordering=ordering, shards=own)
    made.go_to("q", BEGINNING)
    return made


async def claim(lane: StoreLane, at: KeyCursor, keys: int = 100) -> RunClaim:
    async with asyncio.timeout(60):
        return await lane.claim_runs(at, keys=keys, rows_per_key=10, lease_seconds=60.0)


async def fill(postgres: PostgresBackend) -> None:
    await postgres.insert(*(NewRow("q", b"", key=key) for key in KEYS for _ in range(2)))


@pytest.mark.parametrize("ordering", STRATEGIES, ids=lambda ordering: type(ordering).__name__)
async def test_who_comes_second_counts_the_keys_that_it_lost(postgres: PostgresBackend, ordering: Ordering) -> None:
    await fill(postgres)
    async with postgres.engine.begin() as first, postgres.store.connect() as second:
        # Its claim is not committed yet, so the second claimer sees its keys as free.
        taken = await claim(postgres.store.borrow(first), cursor(ordering), keys=5)
        assert (len(taken.runs), taken.lost) == (5, 0)
        rest = await claim(second, cursor(ordering))
        assert (len(rest.runs), rest.lost) == (7, 5)
        assert {run.key for run in taken.runs} | {run.key for run in rest.runs} == set(KEYS)
        await first.commit()
        # Now all are leased, which anybody can see: none is wanted, none is lost.
        nothing = await claim(second, cursor(ordering))
        assert (nothing.runs, nothing.lost) == ([], 0)


async def test_processes_with_shards_of_their_own_lose_nothing_to_each_other(postgres: PostgresBackend) -> None:
    await fill(postgres)
    ordering = HashShards(count=4)
    async with postgres.engine.begin() as first, postgres.store.connect() as second:
        taken = await claim(postgres.store.borrow(first), cursor(ordering, 0, 1))
        rest = await claim(second, cursor(ordering, 2, 3))
    assert taken.runs
    assert rest.runs
    assert (taken.lost, rest.lost) == (0, 0)
    assert len(taken.runs) + len(rest.runs) == len(KEYS)


async def test_a_shard_that_moves_takes_no_key_from_its_holder(postgres: PostgresBackend) -> None:
    """Nor do shards of another number: the lease is the key's own."""
    await fill(postgres)
    async with postgres.store.connect() as old, postgres.store.connect() as new:
        held = await claim(old, cursor(HashShards(count=4)))
        await fill(postgres)
        for ordering in (HashShards(count=4), HashShards(count=8), HashShards(count=1), HeadLease()):
            assert (await claim(new, cursor(ordering))).runs == []
        await old.settle([Settlement.of_run(run.lease, [(row.id, Ack()) for row in run.rows]) for run in held.runs])
        assert len((await claim(new, cursor(HashShards(count=8)))).runs) == len(KEYS)


@pytest.mark.parametrize("ordering", STRATEGIES, ids=lambda ordering: type(ordering).__name__)
async def test_a_claimer_goes_on_behind_those_who_claim_the_same_keys(
    postgres: PostgresBackend, ordering: Ordering
) -> None:
    """However many claims are under way at the first keys, one more finds others that are free."""
    await postgres.insert(*(NewRow("q", b"", key=f"k{number:04}") for number in range(300)))
    async with AsyncExitStack() as rivals, postgres.store.connect() as last:
        for _ in range(4):
            rival = postgres.store.borrow(await rivals.enter_async_context(postgres.engine.begin()))
            at = cursor(ordering)
            while not (await claim(rival, at, keys=50)).runs:
                pass
        at, lost = cursor(ordering), 0
        for _ in range(30):
            found = await claim(last, at, keys=50)
            lost += found.lost
            if found.runs:
                break
    assert found.runs
    assert lost >= 50


async def test_two_keys_with_one_hash_wait_for_each_other_and_no_longer(postgres: PostgresBackend) -> None:
    """Under advisory locks only, and only while one of them is being claimed."""
    hashed = "hashtext('q:k' || n)"
    pairs = f"SELECT string_agg('k' || n, ' ') FROM generate_series(1, 200000) n GROUP BY {hashed} HAVING count(*) = 2"
    one, other = str((await postgres.run(pairs))[0][0]).split()
    await postgres.insert(NewRow("q", b"", key=one), NewRow("q", b"", key=other))
    async with postgres.engine.begin() as first, postgres.store.connect() as second:
        assert len((await claim(postgres.store.borrow(first), cursor(AdvisoryLocks()), keys=1)).runs) == 1
        waits = await claim(second, cursor(AdvisoryLocks()))
        assert (waits.runs, waits.lost) == ([], 2)
        await first.commit()
        assert len((await claim(second, cursor(AdvisoryLocks()))).runs) == 1


async def test_a_key_that_was_leased_after_its_lock_was_got_is_lost_too(postgres: PostgresBackend) -> None:
    """A claimer of another strategy takes no advisory locks: the condition on the head keeps the two apart."""
    await fill(postgres)
    async with postgres.store.connect() as first, postgres.engine.begin() as connection:
        second = postgres.store.borrow(connection)
        executor: Any = second._executor  # type: ignore[attr-defined]
        fetch = executor.fetch

        async def slow_fetch(statement: Statement, /, **values: Any) -> Any:
            records = await fetch(statement, **values)
            if statement is postgres.store._statements.runs.lock_keys:
                assert len((await claim(first, cursor(HeadLease()), keys=5)).runs) == 5
            return records

        executor.fetch = slow_fetch
        rest = await claim(second, cursor(AdvisoryLocks()))
    assert (len(rest.runs), rest.lost) == (7, 5)
