"""Many at once: each row has one holder, nobody waits in a circle, nobody locks what it does not take."""

import asyncio
import random
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import text

from faststream_outbox.storage import (
    Ack,
    ClaimCursor,
    Dead,
    Lease,
    NewRow,
    OutboxRow,
    Retry,
    Settlement,
    StoreLane,
)
from tests.backends import PostgresBackend, everywhere


async def test_sixteen_claimers_claim_each_row_once(postgres: PostgresBackend) -> None:
    await postgres.fill(4000)
    claimed: Counter[int] = Counter()

    async def claimer() -> None:
        cursor = ClaimCursor(["q"])
        async with postgres.store.connect() as lane:
            while rows := (await lane.claim(cursor, limit=50, lease_seconds=600)).rows:
                claimed.update(row.id for row in rows)
                await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as claimers:
        for _ in range(16):
            claimers.create_task(claimer())
    assert len(claimed) == 4000
    assert set(claimed.values()) == {1}
    assert {row.deliveries_count for row in await postgres.rows()} == {1}


async def test_expired_rows_are_reclaimed_once(postgres: PostgresBackend) -> None:
    await postgres.fill(60)
    await postgres.claim("q", lease_seconds=1)
    await postgres.pass_time(2)
    reclaimed: Counter[int] = Counter()

    async def claimer() -> None:
        async with postgres.store.connect() as lane:
            misses = 0
            while misses < 3:  # two that meet at one row leave it to each other for a moment
                rows = (await lane.claim_suspect(everywhere("q"), lease_seconds=600)).rows
                misses = 0 if rows else misses + 1
                reclaimed.update(row.id for row in rows)

    async with asyncio.timeout(60), asyncio.TaskGroup() as claimers:
        for _ in range(8):
            claimers.create_task(claimer())
    assert set(reclaimed.values()) == {1}
    assert len(reclaimed) == 60


async def test_of_two_settles_one_wins(postgres: PostgresBackend) -> None:
    await postgres.fill(200)
    rows = (await postgres.claim("q", limit=200)).rows
    async with postgres.store.connect() as one, postgres.store.connect() as other:
        first, second = await asyncio.gather(
            one.settle(Settlement(row.lease, Ack()) for row in rows),
            other.settle(Settlement(row.lease, Retry(60, 1)) for row in reversed(rows)),
        )
    assert first.held | second.held == {row.lease for row in rows}
    assert not first.held & second.held
    assert len(await postgres.rows()) == len(second.held)


async def test_renewing_settling_and_releasing_never_deadlock(postgres: PostgresBackend) -> None:
    rows_by_id: dict[int, OutboxRow] = {}
    await postgres.fill(600)
    for row in (await postgres.claim("q", limit=600)).rows:
        rows_by_id[row.id] = row
    rng = random.Random(7)

    async def renewer() -> None:
        async with postgres.store.connect() as lane:
            for _ in range(60):
                await lane.renew([row.lease for row in rng.sample(list(rows_by_id.values()), 200)], lease_seconds=60)

    async def settler(mine: list[OutboxRow]) -> int:
        held = 0
        async with postgres.store.connect() as lane:
            for n in range(0, len(mine), 10):
                batch = mine[n : n + 10]
                held += len((await lane.settle(Settlement(row.lease, Ack()) for row in batch)).held)
        return held

    shuffled = rng.sample(list(rows_by_id.values()), 600)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(renewer())
        settlers = [group.create_task(settler(shuffled[n::3])) for n in range(3)]
    assert sum(task.result() for task in settlers) == 600
    assert await postgres.rows() == []


@pytest.mark.parametrize("queues", [1, 3, 40])
async def test_a_claim_locks_only_what_it_takes(postgres: PostgresBackend, queues: int) -> None:
    names = [f"q{n}" for n in range(queues)]
    for name in names:
        await postgres.fill(120 // queues, queue=name)
    total = 120 // queues * queues
    async with postgres.engine.begin() as connection:
        taken = await postgres.store.borrow(connection).claim(ClaimCursor(names), limit=10, lease_seconds=60)
        # The claim is not committed: its locks stand.
        async with postgres.engine.begin() as other:
            free = await other.execute(text("SELECT count(*) FROM (SELECT 1 FROM outbox FOR UPDATE SKIP LOCKED) x"))
            assert free.scalar_one() == total - len(taken.rows)


async def test_a_rolled_back_claim_is_no_claim(postgres: PostgresBackend) -> None:
    await postgres.fill(10)
    async with postgres.engine.connect() as connection:
        transaction = await connection.begin()
        claim = await postgres.store.borrow(connection).claim(ClaimCursor(["q"]), limit=10, lease_seconds=60)
        assert len(claim.rows) == 10
        await transaction.rollback()
    assert len((await postgres.claim("q")).rows) == 10


async def test_a_publisher_and_a_canceller_do_not_wait_for_a_claimer(postgres: PostgresBackend) -> None:
    await postgres.insert(NewRow("q", b"", timer_id="t"))
    async with postgres.engine.begin() as connection, asyncio.timeout(30):
        await postgres.store.borrow(connection).claim(ClaimCursor(["q"]), limit=10, lease_seconds=60)
        async with postgres.transaction() as session:
            assert not await postgres.store.cancel_timer(session, queue="q", timer_id="t")
            assert await postgres.store.insert(session, NewRow("q", b"")) is not None


async def test_keyed_publishers_of_one_key_draw_their_ids_in_the_order_of_their_commits(
    postgres: PostgresBackend,
) -> None:
    async with postgres.sessions() as first:
        await first.begin()
        one = await postgres.store.insert(first, NewRow("q", b"1", key="k"))

        async def second() -> int | None:
            async with postgres.transaction() as session:
                [row_id] = await postgres.store.insert_many(session, [NewRow("q", b"2", key="k")])
                return row_id

        waiting = asyncio.create_task(second())
        lock_waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        async with asyncio.timeout(30):
            while await postgres.one(lock_waits) != 1:
                assert not waiting.done()
        third = await postgres.insert(NewRow("q", b"3"), NewRow("other", b"4", key="k2"))
        await first.commit()
        two = await waiting
    assert one is not None
    assert two is not None
    assert one < third[0] < third[1] < two, "its id was drawn after the wait, not before"


async def test_keyed_outputs_draw_their_ids_in_the_order_of_commits_too(postgres: PostgresBackend) -> None:
    await postgres.insert(NewRow("in", b""))
    [row] = (await postgres.claim("in")).rows
    async with postgres.sessions() as first:
        await first.begin()
        one = await postgres.store.insert(first, NewRow("q", b"1", key="k"))
        async with postgres.store.connect() as lane:
            waiting = asyncio.create_task(lane.settle([Settlement(row.lease, Ack((NewRow("q", b"2", key="k"),)))]))
            lock_waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            async with asyncio.timeout(30):
                while await postgres.one(lock_waits) != 1:
                    assert not waiting.done()
            [third] = await postgres.insert(NewRow("q", b"3"))
            await first.commit()
            assert (await waiting).held == {row.lease}
    assert one is not None
    ids = {row.payload: row.id for row in await postgres.rows()}
    assert one == ids[b"1"] < third < ids[b"2"], "its id was drawn after the wait, not before"


async def test_settlers_with_keyed_outputs_never_deadlock(postgres: PostgresBackend) -> None:
    await postgres.fill(400)
    rows = (await postgres.claim("q", limit=400)).rows
    rng = random.Random(3)

    async def settler(mine: list[OutboxRow]) -> int:
        held = 0
        async with postgres.store.connect() as lane:
            for n in range(0, len(mine), 20):
                keys = [f"{key}" for key in rng.sample(range(200), 5)]
                ack = Ack(tuple(NewRow("out", b"", key=key) for key in keys))
                held += len((await lane.settle(Settlement(row.lease, ack) for row in mine[n : n + 20])).held)
        return held

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        settlers = [group.create_task(settler(rows[n::4])) for n in range(4)]
    assert sum(task.result() for task in settlers) == 400
    assert await postgres.one("SELECT count(*) FROM outbox WHERE queue = 'out'") == 2000


async def test_locks_of_a_huge_batch_are_bounded(postgres: PostgresBackend) -> None:
    async with postgres.transaction() as session:
        await postgres.store.insert_many(session, [NewRow("q", b"", key=str(n)) for n in range(20_000)])
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert (await session.execute(text(locks))).scalar_one() <= 1024


async def steal_and_settle(lane: StoreLane) -> set[Lease]:
    rows = (await lane.claim_suspect(everywhere("q"), lease_seconds=60)).rows
    return (await lane.settle(Settlement(row.lease, Ack()) for row in rows)).held


async def test_a_lost_lease_is_lost_whoever_asks(postgres: PostgresBackend) -> None:
    """Twenty times: a holder's lease runs out, another takes the row, both settle at once; one effect."""
    for _ in range(20):
        await postgres.fill(1)
        [slow] = (await postgres.claim("q", lease_seconds=1)).rows
        await postgres.pass_time(2)
        async with postgres.store.connect() as one, postgres.store.connect() as other:
            late, stolen = await asyncio.gather(one.settle([Settlement(slow.lease, Ack())]), steal_and_settle(other))
        assert len(late.held) + len(stolen) == 1
        assert await postgres.rows() == []


async def test_extending_a_timer_in_flight_locks_nobody_out(postgres: PostgresBackend) -> None:
    """A caller that extends it and then takes its time keeps its holder from nothing."""
    await postgres.insert(NewRow("q", b"", timer_id="t"))
    await postgres.fill(20)
    rows = (await postgres.claim("q")).rows
    async with postgres.transaction() as session, asyncio.timeout(30):
        assert await postgres.store.insert(session, NewRow("q", b"", timer_id="t"), timer_conflict="extend") is None
        async with postgres.store.connect() as lane:
            assert len(await lane.renew([row.lease for row in rows], lease_seconds=60)) == 21
            assert len((await lane.settle(Settlement(row.lease, Ack()) for row in rows)).held) == 21


async def test_a_locked_row_does_not_keep_the_others_from_being_renewed(postgres: PostgresBackend) -> None:
    await postgres.fill(20)
    rows = (await postgres.claim("q")).rows
    async with postgres.engine.begin() as connection, postgres.store.connect() as lane, asyncio.timeout(30):
        await connection.execute(text("SELECT 1 FROM outbox WHERE id = :id FOR UPDATE"), {"id": rows[3].id})
        renewed = await lane.renew([row.lease for row in rows], lease_seconds=60)
    assert renewed == {row.lease for row in rows} - {rows[3].lease}


async def test_two_publishers_of_one_timer_reach_the_later_deadline(postgres: PostgresBackend) -> None:
    """The second waits for the first's commit, and still extends what it finds then."""
    soon, later = (NewRow("q", b"", timer_id="t", activate_in=timedelta(hours=h)) for h in (1, 5))
    async with postgres.sessions() as first:
        await first.begin()
        await postgres.store.insert(first, soon)

        async def second() -> None:
            async with postgres.transaction() as session:
                await postgres.store.insert(session, later, timer_conflict="extend")

        waiting = asyncio.create_task(second())
        async with asyncio.timeout(30):
            while await postgres.one("SELECT count(*) FROM pg_locks WHERE NOT granted") != 1:
                assert not waiting.done()
        await first.commit()
        await waiting
    [row] = await postgres.rows()
    assert row.next_attempt_at - row.created_at > timedelta(hours=4)


async def test_burying_long_texts_and_renewing_do_not_deadlock(postgres: PostgresBackend) -> None:
    """Enough text to spill a hash to disk, which would mix up the order of the locks."""
    await postgres.fill(1500)
    rows = (await postgres.claim("q", limit=1500)).rows
    done = asyncio.Event()

    async def renewer() -> None:
        async with postgres.store.connect() as lane:
            while not done.is_set():
                await lane.renew([row.lease for row in rows], lease_seconds=60)

    async def burier() -> None:
        async with postgres.store.connect() as lane:
            text_of_8_kib = "x" * 8192
            settled = await lane.settle(Settlement(row.lease, Dead("rejected", text_of_8_kib)) for row in rows)
            assert len(settled.held) == 1500
        done.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(renewer())
        group.create_task(burier())
    assert len(await postgres.dead_letters()) == 1500
